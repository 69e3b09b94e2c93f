"""The roles of a run, with arms that deliver one recorded episode repeatedly, at the rate it was recorded."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ray

from dovetail.config.schema import RunConfig
from dovetail.core.types import Episode, Purpose
from dovetail.episodes.ids import new_episode_id
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.robot import order_episode
from dovetail.runtime.ray.roles.handles import StoreHandle
from dovetail.runtime.ray.roles.labeler import LabelerRole
from dovetail.runtime.ray.roles.learner import LearnerRole
from dovetail.runtime.ray.roles.store import StoreRole
from dovetail.runtime.ray.roles.weights import WeightsRole

__all__ = ["Ingested", "ReplayingArms", "RolesWithoutArms", "record"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Ingested(NamedTuple):
    """What one store took while a number of arms delivered to it."""

    seconds: float
    offered: int  # episodes that ended on an arm
    stored: int  # episodes that the store acknowledged
    latencies: tuple[float, ...]  # seconds from an episode's end to the store's acknowledgement
    updates: int
    cpu_s: Mapping[str, float]  # by role


def record(config: RunConfig) -> Episode:
    """Record one episode, in simulated time."""
    assembly = build_assembly(config)
    try:
        actor = assembly.actor_for(Purpose.ONLINE)
        episode = actor.run(order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="bench"))
    finally:
        assembly.close()
    assert episode is not None
    return episode


class ReplayingArms:
    """One thread per arm. An episode waits, as in a spool, until the store has taken the one before it."""

    def __init__(self, store: Any, episode: Episode) -> None:
        self._store, self._episode = StoreHandle(store), episode
        self._period_s = len(episode) / episode.robot.control_hz

    def pid(self) -> int:
        return os.getpid()

    def deliver_once(self) -> bool:
        return self._store.deliver(_as_new_episode(self._episode))

    def replay(self, num_arms: int, seconds: float) -> tuple[int, list[float]]:
        """Deliver for `seconds`. Returns the number of episodes that ended, and the latency of each that was stored."""
        began_s = time.monotonic()
        until_s = began_s + seconds
        ended, latencies = [0] * num_arms, [list[float]() for _ in range(num_arms)]

        def act(arm: int) -> None:
            ends_s = began_s + self._period_s * (1 + arm) / num_arms  # not all at the same time
            while ends_s < until_s:
                time.sleep(max(0.0, ends_s - time.monotonic()))
                if time.monotonic() >= until_s:
                    break
                if self._store.deliver(_as_new_episode(self._episode)):
                    done_s = time.monotonic()
                    if done_s < until_s:
                        latencies[arm].append(done_s - ends_s)
                    ends_s += self._period_s

        for arm in range(num_arms):
            ended[arm] = sum(
                began_s + self._period_s * ((1 + arm) / num_arms + k) < until_s
                for k in range(int(seconds / self._period_s) + 1)
            )
        threads = [threading.Thread(target=act, args=(arm,)) for arm in range(num_arms)]
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, until_s - time.monotonic()))
        found = [list(each) for each in latencies]
        for thread in threads:
            thread.join()
        return sum(ended), [one for each in found for one in each]


class RolesWithoutArms:
    """The roles of a run as the Ray driver starts them, with `ReplayingArms` in place of its arms."""

    def __init__(self, folder: RunFolder, episode: Episode) -> None:
        path = folder.path.absolute()
        labeler = _actor(LabelerRole, max_concurrency=8).remote(
            "labeler", config=folder.config.model_dump(mode="json"), labels=folder.labels.absolute()
        )
        weights = _actor(WeightsRole).remote()
        self._store = _actor(StoreRole, max_concurrency=16).remote("store", labeler, path=path)
        self._learner = _actor(LearnerRole, max_concurrency=4).remote(
            "learner", path=path, store=self._store, weights=weights
        )
        self._arms = _actor(ReplayingArms, max_concurrency=2).remote(self._store, episode)
        self._roles = {"store": self._store, "learner": self._learner, "labeler": labeler}
        self._pids = {name: ray.get(role.report.remote())["pid"] for name, role in self._roles.items()}
        self._pids["arms"] = ray.get(self._arms.pid.remote())

    def start(self, *, num_episodes: int = 4) -> None:
        """Deliver a few episodes and wait until the learner updates."""
        for _ in range(num_episodes):
            ray.get(self._arms.deliver_once.remote())
        ray.get(self._store.wait_until_processed.remote(30.0))
        ray.get(self._learner.learn.remote(None))
        while self._updates() < 10:
            time.sleep(0.1)

    def measure(self, num_arms: int, seconds: float) -> Ingested:
        cpu_s, updates, began_s = self._cpu_s(), self._updates(), time.monotonic()
        running = self._arms.replay.remote(num_arms, seconds)
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        updates = self._updates() - updates
        cpu_s = {name: used - cpu_s[name] for name, used in self._cpu_s().items()}
        offered, latencies = ray.get(running)
        ray.get(self._store.wait_until_processed.remote(60.0))
        return Ingested(took_s, offered, len(latencies), tuple(latencies), updates, cpu_s)

    def close(self) -> None:
        for role in (self._learner, self._store):
            ray.get(role.close.remote(), timeout=60.0)

    def _updates(self) -> int:
        report = ray.get(self._learner.report.remote())
        if report["problem"]:
            raise RuntimeError(f"the learner stopped: {report['problem']}")
        return int(report["updates"])

    def _cpu_s(self) -> dict[str, float]:
        return {name: _cpu_s(pid) for name, pid in self._pids.items()}


def _actor(role: type, **options: Any) -> Any:
    made: Any = ray.remote(role)
    return made.options(num_cpus=0, **options)


def _as_new_episode(episode: Episode) -> Episode:
    """A copy with a new id and start time."""
    now_ns = time.time_ns()
    name = new_episode_id(unix_ns=now_ns, robot=episode.robot.name)
    segments = tuple(dataclasses.replace(segment, episode_id=name) for segment in episode.segments)
    return dataclasses.replace(episode, id=name, segments=segments, started_unix_ns=now_ns)


def _cpu_s(pid: int) -> float:
    """CPU seconds that a process has used so far, including all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
