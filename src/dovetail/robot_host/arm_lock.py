"""A lock per arm and machine: only one process of this user moves an arm, be it a run or `dovetail robot move`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import IO

from dovetail.config.plugins import is_builtin
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import IdentifiesArm
from dovetail.core.errors import RobotError

__all__ = ["ArmLock"]

_WAIT_S = 1.0  # a control process that was killed may still be ending
_POLL_S = 0.05


class ArmLock:
    """Held until `close`, or until the process ends. The drivers of other packages have no lock: two of them with equal
    settings may be two arms."""

    def __init__(self, robot: PluginSection) -> None:
        self._type = robot.type
        self._file: IO[str] | None = None
        self._path: Path | None = None
        if is_builtin("robot", robot.type) and ":" not in robot.type:
            config = robot.config
            plain = json.dumps(robot.to_plain(), sort_keys=True, default=str)
            name = f"{robot.type} {config.arm_id if isinstance(config, IdentifiesArm) else plain}"
            self._path = _folder() / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"

    def acquire(self) -> None:
        """Raises RobotError if another process holds the lock."""
        if self._path is None or self._file is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._path.open("a+")
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline_s:
                    time.sleep(_POLL_S)
                    continue
                file.seek(0)
                holder = file.read(100).strip() or "another process"
                file.close()
                raise RobotError(f"{holder} moves this '{self._type}' robot already. End it first") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        self._file = file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _folder() -> Path:
    """A folder of this user. Another user's locks cannot be taken, and cannot block ours."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"dovetail-{os.getuid()}" / "arms"
