"""Durable writes: fsync, atomic rename, one writer at a time, JSON with a checksum."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import StoreError

__all__ = [
    "MissingError",
    "check_file",
    "dump_json",
    "fsync_folder",
    "load_json",
    "read_file",
    "sha256",
    "sha256_file",
    "write_atomic",
    "write_file",
    "writer",
]

TEMPORARY = ".tmp"  # inside the store, so that a rename stays on one filesystem

_PIECE = 1 << 20  # bytes per call


class MissingError(StoreError):
    """An expected file does not exist: never written, lost or pruned."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hash a file block by block."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise MissingError(f"{path} is missing") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def check_file(path: Path, *, checksum: str) -> None:
    """Raise StoreError if a file is unreadable or damaged. Unlike `read_file`, returns nothing."""
    if sha256_file(path) != checksum:
        raise StoreError(_damaged(path))


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Without it, a power loss can undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write durably and in pieces, because one large write in the kernel can delay a real-time process."""
    with path.open("wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest[:_PIECE]) :]
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably: readers see the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_file(beside, data)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def read_file(path: Path, *, checksum: str | None = None) -> bytes:
    """Read a whole file. Raises StoreError if it is unreadable or its checksum is wrong."""
    try:
        with path.open("rb", buffering=0) as file:
            piece = min(_PIECE, os.fstat(file.fileno()).st_size + 1)  # allocated per call
            data = b"".join(iter(lambda: file.read(piece), b""))
    except FileNotFoundError as error:
        raise MissingError(f"{path} is missing") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if checksum is not None and sha256(data) != checksum:
        raise StoreError(_damaged(path))
    return data


def _damaged(path: Path) -> str:
    return f"{path} is damaged: its sha256 differs from the recorded one"


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[Path]:
    """Lock a store against other writers in any process. Yields its empty folder for temporary files.

    The kernel releases the lock of a dead process, so any file in that folder is a leftover.
    """
    try:
        temporary = folder / TEMPORARY
        if not temporary.is_dir():
            temporary.mkdir(parents=True, exist_ok=True)
            fsync_folder(folder)
            fsync_folder(folder.parent)
        with (folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _empty(temporary)
            try:
                yield temporary
            finally:
                _empty(temporary)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error


def _empty(folder: Path) -> None:
    for leftover in folder.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def dump_json(body: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Encode JSON in one canonical form with a checksum at the end, so that any changed byte is detected."""
    checksum = sha256(_canonical(body, None))
    return _canonical({**body, "checksum": checksum}, indent)


def load_json(data: bytes, *, name: str, indent: int | None = None) -> dict[str, Any]:
    """Decode the output of `dump_json`. Raises StoreError if `name` is damaged."""
    try:
        body = json.loads(data)
        checksum = body.pop("checksum")
        intact = checksum == sha256(_canonical(body, None)) and dump_json(body, indent=indent) == data
    except (ValueError, KeyError, AttributeError, TypeError):
        intact = False
    if not intact:
        raise StoreError(f"{name} is damaged: its checksum does not match")
    return dict(body)


def _canonical(body: Mapping[str, Any], indent: int | None) -> bytes:
    return json.dumps(body, indent=indent, ensure_ascii=True).encode()
