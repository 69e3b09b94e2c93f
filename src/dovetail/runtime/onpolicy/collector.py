"""Collect rollouts in another process, `python -m dovetail.runtime.onpolicy.collector DESCRIPTOR`, while this one learns.

A process, because a simulation step (inverse kinematics, safety filter, verdict) and an update of a small network are both
mostly Python: two threads would wait for each other's interpreter lock. With two processes an iteration takes as long as the
longer of the two, and the optimizer never writes to weights that are in use.

The version of the weights is the number of rollouts that were learned from. Rollout r is learned from at version r, so a
collector with version v waits for newer weights while r - v > `max_staleness`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.actor.actors import ActorConfig
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.images import seen_robot
from dovetail.core.types import Array
from dovetail.learn.rollouts import RolloutSettings
from dovetail.policies.trainable import ValuedPolicy
from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import ChannelClosed
from dovetail.processes.child import WorkerProcess, run_worker
from dovetail.runs.assembly.policy_components import build_acting_policy
from dovetail.runs.assembly.seen_images import image_scaling, image_size
from dovetail.runs.folder import RunFolder
from dovetail.runtime.onpolicy.rollout_collector import Collector
from dovetail.runtime.onpolicy.world_processes import (
    LocalWorlds,
    ProcessWorlds,
    WorldSource,
    build_workcells,
    build_worlds,
    divide,
)
from dovetail.runtime.onpolicy.worlds import check_worlds

__all__ = ["ProcessCollector", "build_collector", "collector_settings"]

_POLL_S = 0.05
_END_S = 2.0


def collector_settings(
    config: RunConfig, rollouts: RolloutSettings, *, num_rollouts: int, folder: RunFolder | None = None
) -> dict[str, Any]:
    """Settings of a collector as plain values. `folder` is the run's, for recorded episodes."""
    if rollouts.record and folder is None:
        raise UsageError(
            "algorithm.record_episodes=true needs a run folder: set it to false, or use `dovetail run`"
        )
    record, actor = None, config.actor.config
    if rollouts.record and folder is not None:
        record = {
            "folder": str(folder.episodes.absolute()),
            "config_hash": folder.config_hash,
            "images": folder.config.images.model_dump(mode="json"),
        }
    return {
        "task": config.task.to_plain() if config.task else None,
        "robot": config.robot.to_plain(),
        "cameras": {name: section.to_plain() for name, section in config.cameras.items()},
        "policy": config.policy.to_plain(),
        "safety": config.safety.model_dump(mode="json"),
        "components": str(folder.components.absolute()) if folder is not None else None,
        "seed": config.run.seed,
        "rollouts": asdict(rollouts),
        "num_rollouts": num_rollouts,
        "record": record,
        "execution_horizon": actor.execution_horizon if isinstance(actor, ActorConfig) else None,
        "image_size": image_size(config),
        "image_scaling": image_scaling(config),
    }


def build_collector(settings: Mapping[str, Any], worlds: Mapping[str, Array]) -> Collector:
    """A collector in this process. `worlds` is the saved state of the worlds, empty for new ones."""
    seed, rollouts = settings["seed"], RolloutSettings(**settings["rollouts"])
    check_worlds(worlds, num_worlds=rollouts.num_envs)
    num_processes = min(rollouts.num_processes, rollouts.num_envs)
    workcells = build_workcells(settings, rollouts.num_envs if num_processes == 1 else 1)
    policy = cast(
        ValuedPolicy,
        build_acting_policy(
            PluginSection.parse("policy", settings["policy"]),
            robot=seen_robot(workcells[0].robot.spec, settings["image_size"], settings["image_scaling"]),
            seed=seed,
            components=Path(settings["components"]) if settings["components"] else None,
        ),
    )
    sources: list[WorldSource] = []
    all_numbers = range(rollouts.num_envs)
    if num_processes == 1:
        local = build_worlds(settings, workcells, spec=policy.spec, numbers=all_numbers, worlds=worlds)
        sources.append(LocalWorlds(local))
    else:
        workcells[0].close()  # it was for the spec
        for number, part in enumerate(np.array_split(all_numbers, num_processes)):
            numbers = part.tolist()
            sources.append(
                ProcessWorlds(
                    settings, spec=policy.spec, numbers=numbers, worlds=divide(worlds, numbers), number=number
                )
            )
    return Collector(
        sources,
        policy=policy,
        rollouts=rollouts,
        execution_horizon=min(settings["execution_horizon"] or policy.spec.horizon, policy.spec.horizon),
        seed=seed,
        num_rollouts=settings["num_rollouts"],
    )


class ProcessCollector:
    """A Collector in another process: `load` sends weights, `collect` waits for the rollout in progress."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        worlds: Mapping[str, Array],
        *,
        should_stop: Callable[[], bool] = lambda: False,
        timeout_s: float = 600.0,
    ) -> None:
        self._should_stop, self._timeout_s = should_stop, timeout_s
        self.process = WorkerProcess("the collector", "dovetail.runtime.onpolicy.collector")
        self._rollouts: queue.SimpleQueue[dict[str, Array] | None] = queue.SimpleQueue()
        # A thread receives at once: if both processes were to send and neither to receive, they would wait forever.
        # The limit on staleness also limits the length of the queue.
        self._reader = threading.Thread(target=self._read, name="rollouts", daemon=True)
        self._reader.start()
        self._send(settings, worlds)

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        flat = {f"{component}|{name}": array for component, w in weights.items() for name, array in w.items()}
        self._send({"version": version}, flat)

    def collect(self) -> dict[str, Array] | None:
        """The next rollout; None if the run is to end. Raises FailureError if none will come."""
        deadline_s = time.monotonic() + self._timeout_s
        while not self._should_stop():
            try:
                rollout = self._rollouts.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() > deadline_s:
                    raise FailureError(f"the collector sent no rollout within {self._timeout_s:.0f} s") from None
                continue
            if rollout is None:
                self._rollouts.put(None)  # a second call fails too
                raise FailureError(self.process.exit_reason())
            return rollout
        return None

    def close(self) -> None:
        self.process.close(timeout_s=_END_S)  # it checks its channel at each tick
        self._reader.join()
        self.process.channel.close()

    def _send(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        with contextlib.suppress(ChannelClosed):  # `collect` reports the end of the process
            self.process.channel.send(message, arrays)

    def _read(self) -> None:
        try:
            while True:
                message, rollout = self.process.channel.receive()
                if "error" in message:
                    self.process.error = message["error"]
                else:
                    self._rollouts.put(rollout)
        except ChannelClosed:
            self._rollouts.put(None)


def _collect_rollouts(channel: ArrayChannel) -> None:
    """The work of the collector process."""
    import torch

    torch.set_num_threads(1)  # policy.num_threads may allow more
    settings, worlds = channel.receive()
    collector = build_collector(settings, worlds)
    max_staleness, version = settings["rollouts"]["max_staleness"], -1

    def load_weights() -> None:
        nonlocal version
        while version < 0 or collector.num_rollouts - version > max_staleness or channel.has_data():
            message, flat = channel.receive()
            weights: dict[str, dict[str, Array]] = {}
            for name, array in flat.items():
                component, _, inner = name.partition("|")
                weights.setdefault(component, {})[inner] = array
            version = message["version"]
            collector.load(weights, version=version)

    while True:
        channel.send({}, collector.collect(before_tick=load_weights))


if __name__ == "__main__":
    run_worker(_collect_rollouts)
