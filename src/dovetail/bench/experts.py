"""Is each task real and solvable? Its expert must solve it, and a blind replay of the expert must not."""

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
from dovetail.runs.assembly.build import Station, build_station
from dovetail.runs.evaluate import order_episode

__all__ = ["BlindReplay", "bench"]

FIRST_REPLAY_RESET = 10_000  # resets that no demonstration was recorded on


def bench(*, quick: bool) -> Iterator[Row]:
    num_resets, num_replays = (10, 10) if quick else (100, 50)
    for task in BUILTIN["task"]:
        for arm in ARMS:
            station = _station(task, arm)
            if station is None:
                continue
            try:
                yield from _measure(f"{task} on {arm}", station, num_resets=num_resets, num_replays=num_replays)
            finally:
                station.close()


def _station(task: str, arm: str) -> Station | None:
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
    return build_station(config) if ARMS[arm].embodiment in embodiments else None


def _measure(name: str, station: Station, *, num_resets: int, num_replays: int) -> Iterator[Row]:
    expert = station.actor(operator=Demonstrator(task=station.task, noise=0.0), policy=None)
    shown = [_play(expert, station, index) for index in range(num_resets)]
    solved = [episode for episode in shown if episode.outcome is Outcome.SUCCESS]
    yield at_least(f"{name}: expert", len(solved) / num_resets, f"of {num_resets}", 0.95)
    if not solved:
        return
    yield Row(name=f"{name}: expert needs", value=float(np.mean([len(e) for e in solved])), unit="steps")
    blind = [_replay(station, solved[i % len(solved)], FIRST_REPLAY_RESET + i) for i in range(num_replays)]
    share = sum(blind) / num_replays
    ratio = share * num_resets / len(solved)
    yield at_most(f"{name}: blind replay", share, f"of {num_replays}", 0.20, baseline="expert", ratio=ratio)


def _play(actor: Actor, station: Station, index: int) -> Episode:
    order = order_episode(station, purpose=Purpose.DEMO, index=index, config_hash="")
    episode = actor.run(order)
    assert episode is not None, "nobody asks a bench to stop"
    return episode


def _replay(station: Station, demo: Episode, index: int) -> bool:
    operator: Operator = BlindReplay(demo.column("executed"), action_kind=demo.robot.action_kind)
    episode = _play(station.actor(operator=operator, policy=None), station, index)
    return episode.outcome is Outcome.SUCCESS


class BlindReplay:
    """Somebody who repeats a recording with closed eyes, and holds still at its end."""

    name = "blind_replay"

    def __init__(self, actions: Sequence[Array] | Array, *, action_kind: str) -> None:
        self._actions = np.asarray(actions, np.float32)
        self._hold = self._actions[-1].copy()
        if action_kind == "ee_delta":
            self._hold[:6] = 0.0  # no motion, the grip as it was
        self._next = 0

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._next = 0

    def poll(self, observation: Observation) -> HumanInput:
        index, self._next = self._next, self._next + 1
        return HumanInput(action=self._actions[index] if index < len(self._actions) else self._hold)
