"""What a disk may contain after a power cut: crash images, built from the recorded changes of a folder.

A file's data is durable up to its last fsync, a name up to the last fsync of its folder. Of all later changes, any subset
may have reached the disk, and a write may be torn at a border of 512 bytes. A rename happens completely or not at all.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Change", "Disk", "Fate", "read_changes"]

_HEADER = struct.Struct("<IIIIQQQ")
_SECTOR = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One successful call, or a mark of the test."""

    kind: str  # C create, D mkdir, L link, R rename, U unlink or rmdir, W write, T size, S fsync, M mark
    inode: int
    offset: int  # of a write; the new size of a T
    a: str  # path below the folder, or the text of a mark
    b: str
    data: bytes


class Fate(enum.IntEnum):
    """What a power cut does to a change that is not durable."""

    KEPT = 0
    LOST = 1
    ZEROED = 2  # the size of the file has grown, its data is lost
    FIRST_SECTORS = 3
    EVERY_OTHER_SECTOR = 4


def read_changes(record: bytes, root: str) -> list[Change]:
    changes: list[Change] = []
    place = 0
    while place < len(record):
        op, size_a, size_b, _, inode, offset, size = _HEADER.unpack_from(record, place)
        place += _HEADER.size
        a, b, data = (
            record[place : place + size_a],
            record[place + size_a : place + size_a + size_b],
            record[place + size_a + size_b : place + size_a + size_b + size],
        )
        place += size_a + size_b + size
        kind = chr(op)
        paths = [text.decode() if kind == "M" else text.decode().removeprefix(root).strip("/") for text in (a, b)]
        changes.append(Change(kind=kind, inode=inode, offset=offset, a=paths[0], b=paths[1], data=data))
    return changes


@dataclass(eq=False, slots=True)
class _File:
    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Change] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Folder:
    live: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Folder


@dataclass(eq=False, slots=True)
class _Naming:
    """A change of names: an entry removed, an entry added, or both at once."""

    removed: tuple[_Folder, str, _Node] | None
    added: tuple[_Folder, str, _Node] | None
    durable: bool = False


class Disk:
    """Apply changes in order; then `write_image` makes what a power cut at this moment leaves."""

    def __init__(self) -> None:
        self.root = _Folder()
        self._inodes: dict[int, _Node] = {}
        self._namings: list[_Naming] = []

    def apply(self, change: Change) -> None:
        if change.kind == "W":
            self._write(change)
        elif change.kind == "T":
            file = self._file(change.inode)
            _resize(file.live, change.offset)
            file.pending.append(change)
        elif change.kind == "S":
            self._sync(change.inode)
        elif change.kind in "CDLRU":
            self._name(change)

    def _file(self, inode: int) -> _File:
        node = self._inodes[inode]
        assert isinstance(node, _File)
        return node

    def _write(self, change: Change) -> None:
        file = self._file(change.inode)
        _overwrite(file.live, change.offset, change.data)
        file.pending.append(change)

    def _sync(self, inode: int) -> None:
        node = self._inodes.get(inode, self.root)  # the folder itself was there before the record began
        if isinstance(node, _File):
            node.durable = bytes(node.live)
            node.pending.clear()
            return
        for naming in self._namings:
            place = naming.added or naming.removed
            assert place is not None
            naming.durable |= place[0] is node

    def _name(self, change: Change) -> None:
        removed = added = None
        if change.kind in "CD":
            node: _Node = _File() if change.kind == "C" else _Folder()
            self._inodes[change.inode] = node
            added = (*self._parent(change.a), node)
        elif change.kind == "L":
            folder, name = self._parent(change.a)
            added = (*self._parent(change.b), folder.live[name])
        else:
            folder, name = self._parent(change.a)
            removed = (folder, name, folder.live.pop(name))
            if change.kind == "R":
                added = (*self._parent(change.b), removed[2])
        if added is not None:
            added[0].live[added[1]] = added[2]
        self._namings.append(_Naming(removed=removed, added=added))

    def _parent(self, path: str) -> tuple[_Folder, str]:
        *folders, name = path.split("/")
        node: _Node = self.root
        for folder in folders:
            assert isinstance(node, _Folder)
            node = node.live[folder]
        assert isinstance(node, _Folder)
        return node, name

    # ---- images

    def num_pending(self) -> int:
        """How many changes are not durable."""
        return len(self._pending_namings()) + sum(len(file.pending) for file in self._files())

    def _pending_namings(self) -> list[_Naming]:
        return [naming for naming in self._namings if not naming.durable]

    def _files(self) -> list[_File]:
        return [node for node in self._inodes.values() if isinstance(node, _File)]

    def write_image(self, target: Path, fates: Sequence[Fate]) -> None:
        """Make a folder, given the fate of each change that is not durable."""
        remaining = iter(fates)
        fate_of = {id(naming): next(remaining) for naming in self._pending_namings()}
        content = {}
        for file in self._files():
            data = bytearray(file.durable)
            for change in file.pending:
                _apply_partly(data, change, next(remaining))
            content[id(file)] = bytes(data)
        entries: dict[int, dict[str, _Node]] = {}
        for naming in self._namings:
            if fate_of.get(id(naming), Fate.KEPT) != Fate.KEPT:
                continue
            if naming.removed is not None:
                folder, name, node = naming.removed
                if entries.get(id(folder), {}).get(name) is node:
                    del entries[id(folder)][name]
            if naming.added is not None:
                folder, name, node = naming.added
                entries.setdefault(id(folder), {})[name] = node
        _materialize(self.root, target, entries, content)


def _overwrite(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _apply_partly(data: bytearray, change: Change, fate: Fate) -> None:
    if fate == Fate.LOST:
        return
    if change.kind == "T":
        _resize(data, change.offset)
        return
    end = change.offset + len(change.data)
    if fate == Fate.ZEROED:
        _resize(data, max(len(data), end))
        return
    if fate == Fate.KEPT:
        _overwrite(data, change.offset, change.data)
        return
    first, last = change.offset // _SECTOR, -(-end // _SECTOR)
    middle = (first + last + 1) // 2
    for sector in range(first, last):
        kept = sector < middle if fate == Fate.FIRST_SECTORS else (sector - first) % 2 == 1
        if kept:
            a, b = max(change.offset, sector * _SECTOR), min(end, (sector + 1) * _SECTOR)
            _overwrite(data, a, change.data[a - change.offset : b - change.offset])


def _materialize(
    folder: _Folder, target: Path, entries: dict[int, dict[str, _Node]], content: dict[int, bytes]
) -> None:
    target.mkdir()
    for name, node in entries.get(id(folder), {}).items():
        if isinstance(node, _Folder):
            _materialize(node, target / name, entries, content)
        else:
            (target / name).write_bytes(content[id(node)])
