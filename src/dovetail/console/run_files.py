"""The files of a run as the console reads them, while the run is active or after it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.console.arms import LiveArms
from dovetail.console.deployment_api import RunDeployment
from dovetail.console.emergency import ConsoleStop
from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.console.run_history import RunHistory
from dovetail.core.disk import MAX_JSON_BYTES, MissingError, open_file, open_lock, parse_json, read_file
from dovetail.core.errors import RunFolderError, StoreError
from dovetail.weights.store import DiskWeightStore

__all__ = ["ConsoleLock", "OpenRun", "PublishedWeights", "RunFiles", "Version"]

_MAX_POINTS = 400  # of a learner's curve
_MAX_ADDRESS = 200
_MAX_EVENT_BYTES = 1 << 20  # of one line


class OpenRun:
    """Everything that the pages show of a run and change in it."""

    def __init__(self, path: Path) -> None:
        self.files = RunFiles(path)
        self.name = self.files.name
        self.arms = LiveArms(path)
        self.stop = ConsoleStop(path, self.arms)
        self.history = RunHistory(self.files)
        self.weights = PublishedWeights(path / "weights")
        self.deployment = RunDeployment(path)
        self.episodes = RecordedEpisodes(path)
        self.labels = EpisodeLabels(path)


class RunFiles:
    """Events and curves. Nothing that was read is kept here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.absolute().name
        self._logs: Any = None
        self._reading_logs = threading.Lock()

    def events(self, offset: int) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Each event after this place in the file, with the place after it. A line that no run writes is an empty event."""
        try:
            file = open_file(self.path / "events.jsonl")
        except MissingError:
            return
        with file:
            file.seek(offset)
            while (line := file.readline(_MAX_EVENT_BYTES)).endswith(b"\n") or len(line) == _MAX_EVENT_BYTES:
                offset += len(line)
                event: Any = None
                with contextlib.suppress(ValueError):  # half a line of a killed process, or a part of a long one
                    event = parse_json(line)
                yield (event if isinstance(event, dict) else {}), offset

    def curves(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """The learner's curves of the newest log file: (env steps, value) by name. May take a second."""
        if not (self.path / "logs").is_dir():
            return {}
        with self._reading_logs:
            if self._logs is None:
                from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

                self._logs = EventAccumulator(str(self.path / "logs"), size_guidance={"scalars": _MAX_POINTS})
            self._logs.Reload()
            tags = [tag for tag in self._logs.Tags()["scalars"] if tag.startswith("learner/")]
            return {
                tag.removeprefix("learner/"): [(point.step, point.value) for point in self._logs.Scalars(tag)]
                for tag in tags
            }


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
        """Versions of the weights that can be loaded, oldest first."""
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
        path = self._folder / "pin.json"
        try:
            return int(parse_json(read_file(path, max_bytes=MAX_JSON_BYTES))["version"])
        except MissingError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} names no version. Pin one again") from error

    def pin(self, version: int | None) -> None:
        self._store.pin(version)


class ConsoleLock:
    """Allows one console per run; a second one gets the first one's address. The kernel frees it with the process."""

    def __init__(self, run: Path) -> None:
        self._path = run / ".console.lock"
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        try:
            file = open_lock(self._path)
        except OSError as error:
            raise RunFolderError(f"cannot write to run folder {self._path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            shown = _printable(file.read(_MAX_ADDRESS)) or "another address"
            file.close()
            raise RunFolderError(f"this run already has a console at {shown}: use that one") from error
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            raise RunFolderError(
                f"{self._path} is a hard link: copy the run folder with `cp -r`, and use the copy"
            )
        file.truncate(0)
        self._file = file

    def write_address(self, address: str) -> None:
        """Write the address for a second console to show, without the token."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate(0)
        self._file.write(f"{address}\n".encode())


def _printable(data: bytes) -> str:
    """The file is from a run folder, and its text goes to a terminal."""
    return "".join(c for c in data.decode("ascii", "replace") if c.isprintable())
