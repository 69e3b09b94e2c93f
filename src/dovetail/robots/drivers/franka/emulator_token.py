"""The token of an emulator's own endpoints, in a temporary file that only its user can read. So a recipe need not name it.

An emulator that is killed leaves its file behind. The next one at this address replaces it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from dovetail.core.disk import is_private_folder, private_folder, read_file, user_folder
from dovetail.core.errors import RobotError, StoreError

__all__ = ["HEADER", "make_token", "read_token", "remove_token"]

HEADER = "X-Dovetail-Token"
_MAX_BYTES = 4096


def make_token(address: str, token: str | None = None) -> str:
    """A new token for the emulator at an address, written to its file."""
    token, path = token or secrets.token_urlsafe(24), _file(address)
    private_folder(path.parent.parent)
    private_folder(path.parent)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(path, "w", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
        file.write(token)
    return token


def read_token(address: str) -> str:
    """Raises RobotError if there is none, or if another user may have written it."""
    path = _file(address)
    try:
        if not is_private_folder(path.parent.parent) or not is_private_folder(path.parent):
            raise StoreError(f"{path.parent} is no private folder")
        return read_file(path, max_bytes=_MAX_BYTES).decode().strip()
    except (StoreError, UnicodeDecodeError) as error:
        raise RobotError(
            f"no emulator of this user runs at {address}. Start `dovetail emulate franka task=peg_insertion lockstep=true`, "
            "or set robot.token"
        ) from error


def remove_token(address: str) -> None:
    with contextlib.suppress(OSError):
        _file(address).unlink()


def _file(address: str) -> Path:
    return user_folder() / "emulators" / f"franka-{address.replace(':', '-').replace('/', '-')}.token"
