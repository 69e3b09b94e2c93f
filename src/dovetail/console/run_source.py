"""A run folder as the console sees it: read along, whether the run is on or over. No torch: this must start fast."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from dovetail.console.handles import Handles, Version
from dovetail.console.recorded_episodes import RunDesk, RunDownloads, RunEpisodes
from dovetail.console.robot_source import LiveRobot
from dovetail.core.errors import RunFolderError
from dovetail.runs.acknowledgements import acknowledge
from dovetail.weights.store import DiskWeightStore

__all__ = ["ConsoleLock", "RunView", "WeightsView", "open_handles"]

_MOST_POINTS = 400  # of a learner's curve


def open_handles(path: Path) -> Handles:
    """Everything a console needs of a run."""
    robot, episodes = LiveRobot(path), RunEpisodes(path)
    return Handles(
        run=RunView(path),
        robot=robot,
        driver=robot,
        weights=WeightsView(path / "weights"),
        episodes=episodes,
        desk=RunDesk(path),
        downloads=RunDownloads(path, episodes),
    )


class RunView:
    """See `Run`. Files are read where they have grown, never whole again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.absolute().name
        self._events: list[Mapping[str, Any]] = []
        self._read_to = 0
        self._logs: Any = None

    @property
    def facts(self) -> Mapping[str, str]:
        config = yaml.safe_load((self.path / "config.yaml").read_text("utf-8"))
        kinds = ("task", "robot", "policy", "algorithm", "operator", "actor")
        return {kind: str(config[kind]["type"]) for kind in kinds if config.get(kind)}

    def events(self, start: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        self._read_on()
        return self._events[start:], len(self._events)

    def curves(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """The newest file's, which a resumed run begins anew; the points that TensorBoard itself would draw."""
        if not (self.path / "logs").is_dir():
            return {}
        if self._logs is None:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            self._logs = EventAccumulator(str(self.path / "logs"), size_guidance={"scalars": _MOST_POINTS})
        self._logs.Reload()
        tags = [tag for tag in self._logs.Tags()["scalars"] if tag.startswith("learner/")]
        return {
            tag.removeprefix("learner/"): [(point.step, point.value) for point in self._logs.Scalars(tag)]
            for tag in tags
        }

    def acknowledge(self, robot: str) -> None:
        acknowledge(self.path, robot)

    def _read_on(self) -> None:
        try:
            with (self.path / "events.jsonl").open("rb") as file:
                file.seek(self._read_to)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new.rpartition(b"\n")[0]  # the last line may be half written
        if not whole:
            return
        self._read_to += len(whole) + 1
        for line in whole.split(b"\n"):
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line that a killed process left half
            if isinstance(event, dict) and "event" in event:
                self._events.append(event)


class WeightsView:
    """See `Weights`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = DiskWeightStore(folder)

    def versions(self) -> Sequence[Version]:
        found = []
        for number in self._store.versions():
            path = self._folder / f"v{number:08d}.json"
            try:
                published_s = path.stat().st_mtime
                hashes = self._store.hashes(number)
                parts = [self._folder / "components" / f"{digest}.safetensors" for digest in hashes.values()]
                num_bytes = sum(part.stat().st_size for part in parts)
            except OSError:
                continue  # pruned meanwhile
            found.append(Version(number=number, published_s=published_s, num_bytes=num_bytes))
        return found

    def pinned(self) -> int | None:
        try:
            return int(json.loads((self._folder / "pin.json").read_bytes())["version"])
        except FileNotFoundError:
            return None

    def pin(self, version: int | None) -> None:
        self._store.pin(version)


class ConsoleLock:
    """One console per run; whoever comes second is told where the first is. The kernel drops it with the process."""

    def __init__(self, run: Path) -> None:
        self._path = run / ".console.lock"
        self._file: IO[str] | None = None

    def take(self) -> None:
        try:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        except OSError as error:
            raise RunFolderError(f"cannot write to run folder {self._path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            where = file.read().strip() or "another address"
            file.close()
            raise RunFolderError(f"a console of this run is open already, at {where}: use that one") from error
        file.truncate()
        self._file = file

    def say_where(self, address: str) -> None:
        """Without the token: whoever has it knows it, and nobody else should find it here."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(address + "\n")
        self._file.flush()
