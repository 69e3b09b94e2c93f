"""Whether each task is solvable and needs feedback: its expert must succeed, an open-loop replay of it must fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.bench.rows import Row, at_least, at_most
from dovetail.config.plugins import BUILTIN
from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Actor, Operator
from dovetail.core.types import Array, Episode, HumanInput, Observation, Outcome, Purpose
from dovetail.human.scripted import Demonstrator
from dovetail.robots.sim.arm import ARMS
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.roles.robot import order_episode

__all__ = ["OpenLoopReplay", "bench"]

FIRST_REPLAY_RESET = 10_000  # other resets than those of the demonstrations


def bench(*, quick: bool) -> Iterator[Row]:
    num_resets, num_replays = (10, 10) if quick else (100, 50)
    for task in BUILTIN["task"]:
        for arm in ARMS:
            assembly = _assembly(task, arm)
            if assembly is None:
                continue
            try:
                yield from _measure(f"{task} on {arm}", assembly, num_resets=num_resets, num_replays=num_replays)
            finally:
                assembly.close()


def _assembly(task: str, arm: str) -> Assembly | None:
    config = RunConfig.model_validate(
        {
            "task": {"type": task},
            "robot": {"type": "sim", "arm": arm},
            "policy": {"type": "gaussian_mlp"},
            "algorithm": {"type": "rlpd"},
        }
    )
    assert config.task is not None
    embodiments = config.task.build().spec.embodiments
    return build_assembly(config) if ARMS[arm].embodiment in embodiments else None


def _measure(name: str, assembly: Assembly, *, num_resets: int, num_replays: int) -> Iterator[Row]:
    expert = assembly.actor(operator=Demonstrator(task=assembly.task, noise=0.0), policy=None)
    episodes = [_play(expert, assembly, index) for index in range(num_resets)]
    solved = [episode for episode in episodes if episode.outcome is Outcome.SUCCESS]
    yield at_least(f"{name}: expert", len(solved) / num_resets, f"of {num_resets}", 0.95)
    if not solved:
        return
    yield Row(name=f"{name}: expert needs", value=float(np.mean([len(e) for e in solved])), unit="steps")
    replayed = [_replay(assembly, solved[i % len(solved)], FIRST_REPLAY_RESET + i) for i in range(num_replays)]
    share = sum(replayed) / num_replays
    ratio = share * num_resets / len(solved)
    yield at_most(f"{name}: open-loop replay", share, f"of {num_replays}", 0.20, baseline="expert", ratio=ratio)


def _play(actor: Actor, assembly: Assembly, index: int) -> Episode:
    order = order_episode(assembly, purpose=Purpose.DEMO, index=index, config_hash="")
    episode = actor.run(order)
    assert episode is not None, "an episode without a stop request is complete"
    return episode


def _replay(assembly: Assembly, demo: Episode, index: int) -> bool:
    operator: Operator = OpenLoopReplay(demo.column("executed"), action_kind=demo.robot.action_kind)
    episode = _play(assembly.actor(operator=operator, policy=None), assembly, index)
    return episode.outcome is Outcome.SUCCESS


class OpenLoopReplay:
    """An operator that repeats recorded actions without looking, and holds still at their end."""

    name = "open_loop_replay"

    def __init__(self, actions: Sequence[Array] | Array, *, action_kind: str) -> None:
        self._actions = np.asarray(actions, np.float32)
        self._hold = self._actions[-1].copy()
        if action_kind == "ee_delta":
            self._hold[:6] = 0.0  # no motion, same grip
        self._next = 0

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._next = 0

    def poll(self, observation: Observation) -> HumanInput:
        index, self._next = self._next, self._next + 1
        return HumanInput(action=self._actions[index] if index < len(self._actions) else self._hold)
