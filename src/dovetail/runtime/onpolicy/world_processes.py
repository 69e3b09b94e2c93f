"""Worlds in this process or in several others, `python -m dovetail.runtime.onpolicy.world_processes DESCRIPTOR`.

A message starts or steps all worlds of a process; the processes work at the same time. A world's episodes depend only on its
number and its actions, so the number of processes does not change a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.errors import FailureError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array
from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import ChannelClosed
from dovetail.processes.child import WorkerProcess, run_worker
from dovetail.runs.assembly.workcell import Workcell, build_workcell
from dovetail.runtime.onpolicy.recording import Recording
from dovetail.runtime.onpolicy.worlds import Worlds

__all__ = ["LocalWorlds", "ProcessWorlds", "WorldSource", "build_workcells", "build_worlds", "divide"]

_END_S = 2.0


class WorldSource(Protocol):
    """Worlds that work on a request until its `reply` is read."""

    def request(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None: ...

    def reply(self) -> dict[str, Array]: ...

    def close(self) -> None: ...


def build_workcells(settings: Mapping[str, Any], count: int) -> list[Workcell]:
    """Simulated robots with their tasks, as the settings of a collector describe them."""
    kinds = ("task", "robot")
    sections = {kind: PluginSection.parse(kind, settings[kind]) for kind in kinds if settings[kind] is not None}
    cameras = {name: PluginSection.parse("camera", section) for name, section in settings["cameras"].items()}
    safety = SafetyConfig.from_mapping(settings["safety"])
    return [
        build_workcell(task=sections.get("task"), robot=sections["robot"], cameras=cameras, safety=safety)
        for _ in range(count)
    ]


def build_worlds(
    settings: Mapping[str, Any],
    workcells: Sequence[Workcell],
    *,
    spec: PolicySpec,
    numbers: Sequence[int],
    worlds: Mapping[str, Array],
) -> Worlds:
    record, seed = settings["record"], settings["seed"]
    return Worlds(
        workcells,
        spec=spec,
        numbers=numbers,
        num_worlds=settings["rollouts"]["num_envs"],
        seed=seed,
        worlds=worlds,
        recordings=[Recording.from_settings(cell, record, seed=seed) for cell in workcells] if record else (),
    )


def divide(worlds: Mapping[str, Array], numbers: Sequence[int]) -> dict[str, Array]:
    """The saved state of the worlds with these consecutive numbers."""
    if not worlds:
        return {}
    first, last = numbers[0], numbers[-1] + 1
    state = {"worlds/num_episodes": worlds["worlds/num_episodes"][first:last]}
    if "worlds/sent" in worlds:
        ends = np.concatenate(([0], np.cumsum(worlds["worlds/num_sent"])))
        state["worlds/num_sent"] = worlds["worlds/num_sent"][first:last]
        state["worlds/sent"] = worlds["worlds/sent"][ends[first] : ends[last]]
    return state


class LocalWorlds:
    """Worlds in this process: a request is answered at once."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self._answer: dict[str, Array] = {}

    def request(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._answer = _answer(self._worlds, message, arrays)

    def reply(self) -> dict[str, Array]:
        return self._answer

    def close(self) -> None:
        self._worlds.close()


class ProcessWorlds:
    """Worlds in another process."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        spec: PolicySpec,
        numbers: Sequence[int],
        worlds: Mapping[str, Array],
        number: int,
    ) -> None:
        self.process = WorkerProcess(f"world process {number}", "dovetail.runtime.onpolicy.world_processes")
        self._send({"settings": dict(settings), "spec": spec.to_json(), "numbers": list(numbers)}, worlds)

    def request(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self._send(message, arrays)

    def reply(self) -> dict[str, Array]:
        try:
            message, arrays = self.process.channel.receive()
        except ChannelClosed:
            raise FailureError(self.process.exit_reason()) from None
        if "error" in message:
            self.process.error = message["error"]
            raise FailureError(self.process.exit_reason())
        return arrays

    def close(self) -> None:
        self.process.close(timeout_s=_END_S)
        self.process.channel.close()

    def _send(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        try:
            self.process.channel.send(message, arrays)
        except ChannelClosed:
            self.reply()  # raises the reason


def _answer(worlds: Worlds, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
    if message["do"] == "start":
        return worlds.start()
    if message["do"] == "state":
        return worlds.state()
    extras = {name.removeprefix("extras/"): v for name, v in arrays.items() if name.startswith("extras/")}
    return worlds.step(arrays["actions"], gamma=message["gamma"], version=message["version"], extras=extras)


def _work(channel: ArrayChannel) -> None:
    """The work of a world process."""
    message, saved = channel.receive()
    settings, numbers = message["settings"], message["numbers"]
    workcells = build_workcells(settings, len(numbers))
    spec = PolicySpec.from_json(message["spec"])
    worlds = build_worlds(settings, workcells, spec=spec, numbers=numbers, worlds=saved)
    try:
        while True:
            channel.send({}, _answer(worlds, *channel.receive()))
    finally:
        worlds.close()


if __name__ == "__main__":
    run_worker(_work)
