"""The secret of this user that marks of trusted run folders are made with."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from dovetail.core.disk import fsync_folder, private_folder
from dovetail.core.errors import StoreError

__all__ = ["TrustKeyError", "key_file", "make_key", "read_key"]

_NUM_BYTES = 32


class TrustKeyError(StoreError):
    """The key cannot be read or made, so no run folder can be marked."""


def key_file() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # unset; the standard says to ignore a relative one too
        state = Path(os.path.expanduser("~")) / ".local" / "state"
    return state / "dovetail" / "trust.key"


def read_key() -> bytes | None:
    """The key, or None if this user has none yet. Raises TrustKeyError if other users may know or change it."""
    path = key_file()
    try:
        _check(path.parent, path.parent.lstat(), others=0o022)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrustKeyError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check(path, status, others=0o077)
        if not stat.S_ISREG(status.st_mode) or status.st_size != _NUM_BYTES:
            raise TrustKeyError(f"{path} is not a key of {_NUM_BYTES} bytes. Delete it")
        return file.read(_NUM_BYTES)


def make_key() -> bytes:
    """The key; a new one if this user has none. Processes that call this at the same time get the same key."""
    if (key := read_key()) is not None:
        return key
    path = key_file()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        private_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(beside, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_bytes(_NUM_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):  # another process was first, and its key counts
                os.link(beside, path)
        finally:
            beside.unlink()
        fsync_folder(path.parent)
    except OSError as error:
        raise TrustKeyError(f"cannot make {path}: {error.strerror}") from error
    if (key := read_key()) is None:
        raise TrustKeyError(f"{path} was deleted by another process")
    return key


def _check(path: Path, status: os.stat_result, *, others: int) -> None:
    if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode):
        raise TrustKeyError(f"{path} is not a file or folder of yours. Delete it")
    if status.st_mode & others:
        raise TrustKeyError(f"other users may open {path}. Delete it: a new one is made when you need it")
