"""The token of an emulator's own endpoints, in a file that only its user can read. So a recipe need not name it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from dovetail.core.disk import private_folder
from dovetail.core.errors import RobotError

__all__ = ["HEADER", "make_token", "read_token", "remove_token"]

HEADER = "X-Dovetail-Token"


def make_token(address: str, token: str | None = None) -> str:
    """A new token for the emulator at an address, written to its file."""
    token, path = token or secrets.token_urlsafe(24), _file(address)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    private_folder(path.parent)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(path, "w", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
        file.write(token)
    return token


def read_token(address: str) -> str:
    try:
        return _file(address).read_text().strip()
    except OSError as error:
        raise RobotError(
            f"no emulator of this user runs at {address}. Start `dovetail emulate franka task=peg_insertion lockstep=true`, "
            "or set robot.token"
        ) from error


def remove_token(address: str) -> None:
    with contextlib.suppress(OSError):
        _file(address).unlink()


def _file(address: str) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(os.path.expanduser("~")) / ".local" / "state"
    return state / "dovetail-emulators" / f"franka-{address.replace(':', '-')}.token"
