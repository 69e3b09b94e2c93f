"""A lock per arm and machine: only one process of this user moves an arm, be it a run or `dovetail robot move`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import BinaryIO

from dovetail.config.plugins import is_builtin
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import IdentifiesArm
from dovetail.core.disk import open_lock, private_folder, user_folder
from dovetail.core.errors import RobotError, StoreError

__all__ = ["ArmLock"]

_WAIT_S = 1.0  # a control process that was killed may still be ending
_POLL_S = 0.05


class ArmLock:
    """Held until `close`, or until the process ends. The drivers of other packages have no lock: two of them with equal
    settings may be two arms."""

    def __init__(self, robot: PluginSection) -> None:
        self._type = robot.type
        self._files: list[BinaryIO] = []
        self._ids: list[str] = []
        if is_builtin("robot", robot.type) and ":" not in robot.type:
            config = robot.config
            if isinstance(config, IdentifiesArm):
                self._ids = sorted(set(config.arm_ids))  # sorted: two processes never wait for each other
            else:
                self._ids = [f"{robot.type} {json.dumps(robot.to_plain(), sort_keys=True, default=str)}"]

    def acquire(self) -> None:
        """Raises RobotError if another process holds the lock of one of its arms."""
        if self._files:
            return
        deadline_s = time.monotonic() + _WAIT_S
        try:
            for one in self._ids:
                self._files.append(self._locked(_lock_file(one), deadline_s))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    def _locked(self, path: Path, deadline_s: float) -> BinaryIO:
        try:
            private_folder(path.parent.parent)
            private_folder(path.parent)
            file = open_lock(path)
        except (StoreError, OSError) as error:
            raise RobotError(f"cannot lock the '{self._type}' robot: {error}") from error
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline_s:
                    time.sleep(_POLL_S)
                    continue
                holder = file.read(100).decode(errors="replace").strip() or "another process"
                file.close()
                raise RobotError(f"{holder} moves this '{self._type}' robot already. End it first") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}".encode())
        return file


def _lock_file(arm_id: str) -> Path:
    """Path of the lock, in a folder of this user. Another user's locks cannot be taken, and cannot block ours."""
    return user_folder() / "arms" / f"{hashlib.sha256(arm_id.encode()).hexdigest()[:16]}.lock"
