"""The files of a run as the console reads them, while the run is active or after it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.console.robot import LiveRobot
from dovetail.core.errors import RunFolderError
from dovetail.runs.acknowledgements import acknowledge
from dovetail.weights.store import DiskWeightStore

__all__ = ["ConsoleLock", "OpenRun", "PublishedWeights", "RunFiles", "Version"]

_MAX_POINTS = 400  # of a learner's curve


class OpenRun:
    """Everything that the pages show of a run and change in it."""

    def __init__(self, path: Path) -> None:
        self.files = RunFiles(path)
        self.name = self.files.name
        self.robot = LiveRobot(path)
        self.weights = PublishedWeights(path / "weights")
        self.episodes = RecordedEpisodes(path)
        self.labels = EpisodeLabels(path)


class RunFiles:
    """Events and curves. Each file is read once; later calls read only what was appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.absolute().name
        self._events: list[Mapping[str, Any]] = []
        self._offset = 0
        self._logs: Any = None

    def events(self, start: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        """The events from number `start` on, and the number after the last."""
        self._read_new_events()
        return self._events[start:], len(self._events)

    def curves(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """The learner's curves of the newest log file: (env steps, value) by name. May take a second."""
        if not (self.path / "logs").is_dir():
            return {}
        if self._logs is None:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            self._logs = EventAccumulator(str(self.path / "logs"), size_guidance={"scalars": _MAX_POINTS})
        self._logs.Reload()
        tags = [tag for tag in self._logs.Tags()["scalars"] if tag.startswith("learner/")]
        return {
            tag.removeprefix("learner/"): [(point.step, point.value) for point in self._logs.Scalars(tag)]
            for tag in tags
        }

    def acknowledge(self, robot: str) -> None:
        """Let an arm that stopped continue, in a run of several arms."""
        acknowledge(self.path, robot)

    def _read_new_events(self) -> None:
        try:
            with (self.path / "events.jsonl").open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        complete = new.rpartition(b"\n")[0]  # the last line may be incomplete
        if not complete:
            return
        self._offset += len(complete) + 1
        for line in complete.split(b"\n"):
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a killed process left an incomplete line
            if isinstance(event, dict) and "event" in event:
                self._events.append(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Published weights."""

    number: int
    published_s: float  # unix time
    num_bytes: int


class PublishedWeights:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = DiskWeightStore(folder)

    def versions(self) -> Sequence[Version]:
        """Those that can be loaded, oldest first."""
        found = []
        for number in self._store.versions():
            path = self._folder / f"v{number:08d}.json"
            try:
                published_s = path.stat().st_mtime
                hashes = self._store.hashes(number)
                files = [self._folder / "components" / f"{digest}.safetensors" for digest in hashes.values()]
                num_bytes = sum(file.stat().st_size for file in files)
            except OSError:
                continue  # deleted by the run in between
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
    """Allows one console per run; a second one gets the first one's address. The kernel frees it with the process."""

    def __init__(self, run: Path) -> None:
        self._path = run / ".console.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        try:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        except OSError as error:
            raise RunFolderError(f"cannot write to run folder {self._path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            address = file.read().strip() or "another address"
            file.close()
            raise RunFolderError(f"this run already has a console at {address}: use that one") from error
        file.truncate()
        self._file = file

    def write_address(self, address: str) -> None:
        """Write the address for a second console to show, without the token."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(address + "\n")
        self._file.flush()
