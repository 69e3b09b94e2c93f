"""The folder of a run: its paths, its lock, its config, and `events.jsonl` with a line for each event."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dovetail.config.changes import check_changes, write_changes
from dovetail.config.load import config_hash, load_saved, save
from dovetail.config.schema import RunConfig
from dovetail.core.disk import (
    MAX_JSON_BYTES,
    MissingError,
    dump_json,
    load_json,
    open_file,
    open_for_update,
    open_lock,
    parse_json,
    read_file,
    sha256,
    write_atomic,
)
from dovetail.core.errors import RunFolderError, StoreError
from dovetail.episodes.spool import Spool
from dovetail.runs.component_folder import COMPONENTS
from dovetail.runs.contents import check_run_folder

__all__ = ["RunFolder", "read_events"]

_EVENTS = "events.jsonl"
_AFTER = "evaluations/after.json"
_RUN_ID = "run_id.json"
_CONTINUES = {"demos", "env_steps", "eval_episodes", "stop_when_solved"}  # a finished run continues if one changes


class RunFolder:
    """`create` a new run or `open` an existing one. Only one process at a time may `lock` it."""

    def __init__(self, path: Path, config: RunConfig, saved_hash: str | None = None) -> None:
        self.path = path
        self.config = config
        self.config_hash = saved_hash or config_hash(config)  # as saved: an older version may have used other keys
        self._lock: IO[bytes] | None = None

    @staticmethod
    def create(path: Path, config: RunConfig) -> RunFolder:
        if path.exists():
            raise RunFolderError(f"run folder {path} exists already: choose another --name, or use --resume")
        try:
            path.mkdir(parents=True, mode=0o700)  # images and tokens are for this user only
        except OSError as error:
            raise RunFolderError(f"cannot make run folder {path}: {error.strerror}") from error
        try:
            save(config, path)
        except RunFolderError:
            shutil.rmtree(path)
            raise
        return RunFolder(path, config)

    @staticmethod
    def open(path: Path, *, expect: RunConfig | None = None, trusted: bool = False) -> RunFolder:
        """An existing run. Raises if it was not made by the config `expect`. `trusted`: see `load_saved`."""
        if not (path / "config.yaml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.yaml")
        check_run_folder(path)
        config, saved_hash = load_saved(path, trusted=trusted)
        if expect is not None and config_hash(config) != config_hash(expect):
            raise RunFolderError(
                f"run folder {path} belongs to config {config_hash(config)}, not {config_hash(expect)}: "
                "resume it without changes, or start a new run"
            )
        return RunFolder(path, config, saved_hash)

    def lock(self) -> None:
        """Become the only process that writes here. The lock ends with the process."""
        self._refuse_hard_links()
        try:
            self._lock = open_lock(self.path / ".lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(f"another process is working in run folder {self.path}") from error
        except OSError as error:
            raise RunFolderError(f"cannot write to run folder {self.path}: {error.strerror}") from error

    def _refuse_hard_links(self) -> None:
        """The replay buffer is written in place, so a second name of its files would change too."""
        for path in self.replay.rglob("*"):
            if path.is_file() and path.lstat().st_nlink > 1:
                raise RunFolderError(
                    f"{path} is a hard link, and writing would change its other name too. Delete {self.replay}: it is "
                    "made again"
                )

    def run_id(self) -> str | None:
        """Identifies a run to its policy server. A copy of the folder gets another id, because it has another inode. Made
        once, by the process that has the lock. None without a server."""
        if self.config.policy_server is None:
            return None
        data = self.read_json(_RUN_ID)
        if data is None:
            data = {"id": secrets.token_hex(16)}
            self.write_json(_RUN_ID, data)
        return sha256(f"{data.get('id')} {self.path.stat().st_ino}".encode())[:32]

    def change(self, changes: Mapping[str, Any]) -> None:
        """Change settings of a locked run that continues. Raises UsageError for those that must not change, before any is
        written. If the run now continues after its final evaluation, that evaluation gets another name."""
        check_changes(changes)
        config, _ = load_saved(self.path, changes, quiet=True)
        write_changes(self.path, changes)
        self.event("settings changed", settings=dict(changes))
        last = self.read_json(_AFTER)
        if (
            last is not None
            and config.run != self.config.run
            and _CONTINUES & {key.split(".")[1] for key in changes}
        ):
            (self.path / _AFTER).rename(self.path / f"evaluations/after-{int(last['env_steps']):08d}.json")
        self.config = config

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def labels(self) -> Path:
        return self.path / "labels"

    @property
    def label_queue(self) -> Path:
        return self.labels / "queue"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def replay(self) -> Path:
        return self.path / "replay"

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def components(self) -> Path:
        return self.path / COMPONENTS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def holds_work(self) -> bool:
        """Whether the folder holds episodes, weights or checkpoints. PPO has the last two long before any episode."""
        folders = (self.episodes, self.weights, self.checkpoints)
        files = (
            path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name[0] != "."
        )
        return Spool(self.spool).holds_steps or any(files)

    def event(self, kind: str, /, **fields: Any) -> None:
        line = json.dumps({"time": time.time(), "event": kind, **fields}).encode() + b"\n"
        with open_for_update(self.path / _EVENTS, append=True) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a full disk or a power loss left half a line
                    line = b"\n" + line
            file.write(line)

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Events of these kinds, oldest first."""
        return read_events(self.path, *kinds)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a small file with a checksum, atomically."""
        (self.path / name).parent.mkdir(exist_ok=True)
        write_atomic(self.path / name, dump_json(data, indent=2))

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            return load_json(read_file(path), name=str(path), indent=2)
        except MissingError:
            return None
        except StoreError as error:
            raise StoreError(f"{error}: delete it, and the run makes it again") from error


def read_events(run: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Events of these kinds in a run's folder, oldest first. Incomplete and oversized lines are skipped."""
    patterns = [f'"event": {json.dumps(kind)}'.encode() for kind in kinds]
    try:
        file = open_file(run / _EVENTS)
    except MissingError:
        return
    with file:
        while line := file.readline(MAX_JSON_BYTES + 1):
            if not any(pattern in line for pattern in patterns):  # parsing all lines would be slow
                continue
            try:
                event = parse_json(line)
            except ValueError:
                continue  # a kill, a full disk or a power loss left half a line
            if isinstance(event, dict) and event.get("event") in kinds:
                yield event
