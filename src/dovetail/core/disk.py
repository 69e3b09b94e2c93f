"""Durable writes: fsync, atomic rename, one writer at a time, JSON with a checksum.

A folder may come from an untrusted source. So nothing here follows a symbolic link, opens a pipe or a device, or writes
into a file that has a second name elsewhere; and sizes are limited (docs/security.md).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.core.errors import StoreError

__all__ = [
    "MAX_JSON_BYTES",
    "Data",
    "MissingError",
    "check_file",
    "check_folder",
    "damaged_message",
    "dump_json",
    "fsync_folder",
    "is_private_folder",
    "load_json",
    "make_folder",
    "open_file",
    "open_for_update",
    "open_lock",
    "parse_json",
    "private_folder",
    "read_file",
    "sha256",
    "sha256_file",
    "user_folder",
    "without_writer",
    "write_atomic",
    "write_file",
    "writer",
]

Data = bytes | bytearray | Sequence[memoryview]  # blocks of bytes: a file is their content, one after another

TEMPORARY = ".tmp"  # inside the store, so that a rename stays on one filesystem

MAX_JSON_BYTES = 4 << 20  # parsed JSON can take 20 times its size
_PIECE = 1 << 20  # bytes per call
_MAX_HOLE_BYTES = 64 << 20  # of one file; some file systems store zeros as holes


class MissingError(StoreError):
    """An expected file does not exist: never written, lost or pruned."""


def sha256(data: Data) -> str:
    digest = hashlib.sha256()
    for block in _blocks(data):
        digest.update(block)
    return digest.hexdigest()


def _blocks(data: Data) -> Iterable[bytes | bytearray | memoryview]:
    return (data,) if isinstance(data, (bytes, bytearray)) else data


def sha256_file(path: Path) -> str:
    """Hash a file block by block."""
    with open_file(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error


def check_file(path: Path, *, checksum: str) -> None:
    """Raise StoreError if a file is unreadable or damaged. Unlike `read_file`, returns nothing."""
    if sha256_file(path) != checksum:
        raise StoreError(damaged_message(path))


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Without it, a power loss can undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents durably. A folder with a folder inside is durable, so a failed call can be repeated."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    with contextlib.suppress(PermissionError):  # the parent of a home folder
        fsync_folder(folder.parent)  # a process may have been killed after it made the folder
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        fsync_folder(each.parent)


def write_file(path: Path, data: Data, *, mode: int = 0o666) -> None:
    """Write durably and in pieces, because one large write in the kernel can delay a real-time process."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(path, "wb", buffering=0, opener=lambda name, _: os.open(name, flags, mode)) as file:
        for block in _blocks(data):
            rest = memoryview(block)
            while rest:
                rest = rest[file.write(rest[:_PIECE]) :]
        os.fsync(file.fileno())


def write_atomic(path: Path, data: Data, *, mode: int = 0o666) -> None:
    """Replace a file atomically and durably: readers see the old file or the new one. The umask restricts `mode`."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_file(beside, data, mode=mode)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises StoreError for a link, a pipe, a device or a large file of holes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingError(f"{path} is missing") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise StoreError(_why_not_opened(path, error)) from error
    try:
        status = _check_regular(path, descriptor)
        if status.st_size > _MAX_HOLE_BYTES and _num_hole_bytes(descriptor, status.st_size) > _MAX_HOLE_BYTES:
            raise StoreError(
                f"{path} is refused: too many of its {status.st_size} bytes are holes, which hold no data"
            )
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except StoreError:
        os.close(descriptor)
        raise


def _num_hole_bytes(descriptor: int, size: int) -> int:
    """Bytes of a file that are not stored, counted until there are too many."""
    total = at = 0
    while at < size and total <= _MAX_HOLE_BYTES:
        hole = os.lseek(descriptor, at, os.SEEK_HOLE)
        if hole >= size:
            break
        try:
            at = os.lseek(descriptor, hole, os.SEEK_DATA)
        except OSError:  # a hole up to the end
            at = size
        total += at - hole
    return total


def open_for_update(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file for reading and writing in place; make it if it is missing. Raises StoreError for a link, or if the
    file has a second name: a change would reach a file elsewhere."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_APPEND if append else 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except (OSError, ValueError) as error:
        raise StoreError(_why_not_opened(path, error, "write to")) from error
    try:
        if _check_regular(path, descriptor).st_nlink > 1:
            raise StoreError(
                f"{path} is a hard link, and writing would change its other name too. Copy the folder with `cp -r`, "
                "and use the copy"
            )
        return os.fdopen(descriptor, "r+b", buffering=0)
    except StoreError:
        os.close(descriptor)
        raise


def open_lock(path: Path) -> BinaryIO:
    """Open a lock file, which is made if missing and never truncated. Raises StoreError for a link; OSError if it cannot
    be written."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreError(_why_not_opened(path, error)) from error
        raise
    try:
        _check_regular(path, descriptor)
    except StoreError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b", buffering=0)


def _check_regular(path: Path, descriptor: int) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file")
    return status


def _why_not_opened(path: Path, error: OSError | ValueError, what: str = "read") -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return _is_link(path)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot {what} {path}: {reason}"


def _is_link(path: Path) -> str:
    return f"{path} is a symbolic link, which is not followed. Copy the folder with `cp -rL`, and use the copy"


def check_folder(folder: Path, *, skip: Collection[str] = ()) -> None:
    """Raise StoreError if a folder contains a link, a pipe or a device anywhere. The folder itself may be a link.

    What is inside its folders named in `skip` is not checked.
    """
    rest = [Path(folder)]
    while rest:
        parent = rest.pop()
        try:
            with os.scandir(parent) as entries:
                found = list(entries)
        except OSError as error:
            raise StoreError(f"cannot read {parent}: {error.strerror}") from error
        for entry in found:
            path = parent / entry.name
            if entry.is_symlink():
                raise StoreError(_is_link(path))
            if entry.is_dir(follow_symlinks=False):
                if parent != folder or entry.name not in skip:
                    rest.append(path)
            elif not entry.is_file(follow_symlinks=False):
                raise StoreError(f"{path} is not a regular file")


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can read, also in a folder that everyone can write to, such as /tmp."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StoreError(f"{path} belongs to another user. Delete it")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def user_folder() -> Path:
    """The temporary folder of this user for what several processes share: locks, sockets, tokens. It may not exist yet:
    `private_folder` makes it. Not from the environment: a job of cron must find the same one as a terminal."""
    runtime = Path(f"/run/user/{os.getuid()}")
    return runtime / "dovetail" if os.access(runtime, os.W_OK) else Path(f"/tmp/dovetail-{os.getuid()}")


def is_private_folder(path: Path) -> bool:
    """Whether this is a folder of this user which others can neither read nor write. Makes nothing."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def read_file(path: Path, *, checksum: str | None = None, max_bytes: int | None = None) -> bytes:
    """Read a whole file. Raises StoreError if it is unreadable, too large, or its checksum is wrong."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise StoreError(f"{path} has {size} bytes, more than the {max_bytes} that are allowed")
        try:
            data = file.read()  # allocates the size of the file once
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if checksum is not None and sha256(data) != checksum:
        raise StoreError(damaged_message(path))
    return data


def damaged_message(path: Path) -> str:
    """What a file with another checksum than the recorded one is reported as."""
    return f"{path} is damaged: its sha256 differs from the recorded one"


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[Path]:
    """Lock a store against other writers in any process. Yields its empty folder for temporary files.

    The kernel releases the lock of a dead process, so any file in that folder is a leftover.
    """
    try:
        temporary = folder / TEMPORARY
        if not _is_folder(temporary):
            make_folder(folder)
            temporary.mkdir(exist_ok=True)
        with open_lock(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _empty(temporary)
            try:
                yield temporary
            finally:
                with contextlib.suppress(OSError):  # what was written is durable; the next writer tries again
                    _empty(temporary)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def without_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to a store. Changes nothing, so it works in a read-only folder too."""
    try:
        lock = open_file(folder / ".lock")
    except StoreError:  # there was no writer yet
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, and not a link to one, which another program may own."""
    if path.is_symlink():
        raise StoreError(_is_link(path))
    return path.is_dir()


def _empty(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for leftover in entries:
            if leftover.is_dir(follow_symlinks=False):
                shutil.rmtree(leftover.path)
            else:
                os.unlink(leftover.path)


def dump_json(body: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Encode JSON in one canonical form with a checksum at the end, so that any changed byte is detected."""
    checksum = sha256(_canonical(body, None))
    return _canonical({**body, "checksum": checksum}, indent)


def load_json(data: bytes, *, name: str, indent: int | None = None) -> dict[str, Any]:
    """Decode the output of `dump_json`. Raises StoreError if `name` is damaged."""
    try:
        body = parse_json(data)
        checksum = body.pop("checksum")
        intact = checksum == sha256(_canonical(body, None)) and dump_json(body, indent=indent) == data
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise StoreError(f"{name} is damaged: its checksum does not match")
    return dict(body)


def parse_json(data: bytes | str) -> Any:
    """Decode JSON of an untrusted source. Raises ValueError also if it is large or deeply nested."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON are more than the {MAX_JSON_BYTES} that are allowed")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _canonical(body: Mapping[str, Any], indent: int | None) -> bytes:
    return json.dumps(body, indent=indent, ensure_ascii=True).encode()
