"""Conformance suite for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.core.contracts import Operator, Robot
from dovetail.core.types import Array, Event, HumanInput
from dovetail.testing._rig import Rig, copied, expect, expect_array, expect_same

__all__ = ["check_dead_man", "check_operator"]


def check_operator(
    make_operator: Callable[[Any], Operator],
    make_task: Callable[[], Any],
    make_robot: Callable[[Any], Robot],
    *,
    num_ticks: int = 60,
    reproducible: bool = True,
) -> None:
    """Let an arm stand still and check the operator's input. `make_operator(task)` builds the operator.

    Set `reproducible=False` for a person's device.
    """
    rolls = [_roll(make_operator, make_task, make_robot, num_ticks) for _ in range(2 if reproducible else 1)]
    if reproducible:
        same = len(rolls[0]) == len(rolls[1]) and all(_equal(a, b) for a, b in zip(*rolls, strict=True))
        expect(same, "the operator acts differently for the same rng: use the rng of reset()")


def check_dead_man(
    make_operator: Callable[[Any], Operator],
    make_task: Callable[[], Any],
    make_robot: Callable[[Any], Robot],
    *,
    hold: Callable[[], None],
    let_go: Callable[[], None],
    lose: Callable[[], None],
) -> None:
    """Check the dead-man switch of a device: holding drives, releasing gives control back, a loss makes the arm hold.

    `hold` moves the device away from rest, `let_go` releases it, and `lose` unplugs it or closes its page.
    """
    task = make_task()
    rig = Rig(make_robot(task))
    operator = make_operator(task)
    task.reset(rig.safe, rng=np.random.default_rng(0))
    rig.safe.reset()
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    observation = rig.safe.observe()

    def poll() -> HumanInput:
        polled = operator.poll(observation)
        _check_input(polled, rig)
        return polled

    let_go()
    expect(poll() == HumanInput(), "it gives input although it is not held")
    hold()
    for _ in range(3):
        expect(poll().action is not None, "it is held, but gives no action")
    let_go()
    expect(poll() == HumanInput(), "it was released, but does not give control back")
    hold()
    expect(poll().action is not None, "it is held again, but gives no action")
    lose()
    for _ in range(3):
        polled = poll()
        expect(polled.action is None, "it is lost, but still drives")
        expect(polled.event is Event.PAUSE, "it was lost while held: the arm must hold (event pause)")


def _roll(
    make_operator: Callable[[Any], Operator],
    make_task: Callable[[], Any],
    make_robot: Callable[[Any], Robot],
    num_ticks: int,
) -> list[HumanInput]:
    task = make_task()
    rig = Rig(make_robot(task))
    operator = make_operator(task)
    expect(
        isinstance(operator, Operator),
        f"{type(operator).__name__} does not implement all of Operator: name, reset, poll",
    )
    expect(isinstance(operator.name, str) and operator.name, "name is empty: it is recorded with each episode")
    inputs: list[HumanInput] = []
    for episode in range(2):
        task.reset(rig.safe, rng=np.random.default_rng(episode))
        rig.safe.reset()
        operator.reset(rng=np.random.default_rng(episode), robot_minutes=0.0)
        observation = rig.safe.observe()
        for num_steps in range(1, num_ticks + 1):
            seen = copied(observation.values)
            polled = operator.poll(observation)
            _check_input(polled, rig)
            expect_same(seen, observation.values, "poll() changed the observation")
            kept = HumanInput(action=None if polled.action is None else polled.action.copy(), event=polled.event)
            inputs.append(kept)
            observation = rig.wait() if polled.action is None else rig.step(polled.action)
            expect(_equal(polled, kept), "the action of poll() changed afterwards: copy it")
            if task.judge(rig.safe, observation, num_steps=num_steps).outcome is not None:
                break
        last = operator.poll(observation)  # the poll after the last tick, for a verdict
        _check_input(last, rig)
        inputs.append(last)
    return inputs


def _check_input(polled: HumanInput, rig: Rig) -> None:
    expect(isinstance(polled, HumanInput), f"poll() should return a HumanInput, got {type(polled).__name__}")
    event = polled.event
    expect(event is None or isinstance(event, Event), f"event should be an Event or None, got {event!r}")
    if polled.action is not None:
        expect_array(polled.action, rig.spec.action, what="the operator's action", within=True)


def _equal(ours: HumanInput, theirs: HumanInput) -> bool:
    first: Array | None = ours.action
    second: Array | None = theirs.action
    if ours.event is not theirs.event or (first is None) != (second is None):
        return False
    return first is None or second is None or bool(np.array_equal(first, second))
