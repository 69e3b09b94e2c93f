"""The files of a replay as its writer has them: opened, checked, counted, and space given back.

Order of events, which is what readers rely on: publish that room was made; write rows and frames into the room;
then publish, in one go, that they are there.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from dovetail.core.clock import boot_id
from dovetail.core.disk import dump_json, fsync_folder, load_json, read_file, write_atomic
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.replay._files import Counters, Ring, fence, ring_paths
from dovetail.replay._layout import SCHEMA, TABLES, Layout

__all__ = ["NOTHING", "Book", "Needs", "Tails", "Writing"]

NOTHING = -1  # no row before, or after, this one


class Writing:
    """The right to write a replay: one process, and one of its objects, has it."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (folder / ".lock").open("ab")
        except OSError as error:
            raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise StoreError(f"another process writes the replay in {folder}: there can be one only") from error

    def end(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Tails:
    """The oldest of each kind that still counts."""

    episode: int
    segment: int
    span: int
    row: int
    frames: Array  # [cameras]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Room that is wanted in every ring."""

    num_rows: int
    num_spans: int  # at most
    num_episodes: int = 1
    num_frames: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            num_rows=self.num_rows + other.num_rows,
            num_spans=self.num_spans + other.num_spans,
            num_episodes=self.num_episodes + other.num_episodes,
            num_frames={key: count + other.num_frames[key] for key, count in self.num_frames.items()},
        )


class Book:
    """Rows, frames and records by their numbers. Made by `create` or `load`; there is one of it, see `Writing`."""

    def __init__(self, folder: Path, layout: Layout, counters: Counters) -> None:
        self.layout = layout
        self.counters = counters
        self._publishing = False
        self.rings = {
            name: Ring(path, num_items=num_items, shape=shape, dtype=dtype, writable=True)
            for name, (path, num_items, shape, dtype) in ring_paths(folder, layout).items()
        }
        counters["clean"] = 0
        counters.boot_id = boot_id()
        counters.sync()

    @staticmethod
    def create(folder: Path, layout: Layout) -> Book:
        Book.erase(folder)  # a kill may have left some of an older one, and its counters count
        counters = Counters(folder / "counters", writable=True)
        counters["magic"] = Counters.MAGIC
        book = Book(folder, layout, counters)
        try:
            write_atomic(folder / "layout.json", dump_json(layout.to_json(), indent=1))
        except OSError as error:
            book.let_go()
            raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
        return book

    @staticmethod
    def load(folder: Path) -> Book | str | None:
        """What is there; or why it is not to be trusted; or nothing, where there is nothing."""
        path = folder / "layout.json"
        if not path.exists():
            return None
        try:
            data = load_json(read_file(path), name=str(path), indent=1)
            if data["schema"] != SCHEMA:
                return f"it has schema {data['schema']}, this version writes {SCHEMA}"
            layout = Layout.from_json(data)
            for file, num_items, shape, dtype in ring_paths(folder, layout).values():
                Ring(file, num_items=num_items, shape=shape, dtype=dtype)
            counters = Counters(folder / "counters", writable=True)
        except (StoreError, KeyError, TypeError, ValueError) as error:
            return str(error)
        if counters["magic"] != Counters.MAGIC:
            return "its counters are damaged"
        if counters["retired"]:
            return "it was already being thrown away"
        if counters["version"] % 2:
            return "its writer was killed while it was publishing"
        if not counters["clean"] and counters.boot_id != boot_id():
            return "the machine went down while it was being written"
        book = Book(folder, layout, counters)
        if not book.is_plausible():
            book.let_go()
            return "its tables are damaged"
        return book

    @staticmethod
    def erase(folder: Path) -> None:
        """Throw everything away; readers that have it open learn that they must look again."""
        if (folder / "counters").exists():
            try:
                old = Counters(folder / "counters", writable=True)
                old["retired"] = 1
                old["version"] += 2
            except StoreError:
                pass  # not a page of counters: nobody has it open
        (folder / "layout.json").unlink(missing_ok=True)  # first: without it, nothing else counts
        fsync_folder(folder)
        for path in folder.iterdir():
            if path.suffix in (".bin", ".tmp") or path.name == "counters":
                path.unlink()

    def _has_all_of_its_files(self) -> bool:
        heads = dict.fromkeys(self.layout.columns, self.counters["head_row"])
        heads |= {f"frames/{k}": int(self.counters.head_frame[i]) for i, k in enumerate(self.layout.cameras)}
        heads |= {f"{kind}s": self.counters[f"head_{kind}"] for kind in ("episode", "segment", "span")}
        return all(
            self.rings[name].look() >= min(head, self.rings[name].num_items) for name, head in heads.items()
        )

    def is_plausible(self) -> bool:
        """Whether counters and tables speak of the same rows. Nothing but the tables is read for it."""
        counters, layout = self.counters, self.layout
        sizes = {"row": layout.num_rows, **dict.fromkeys(("episode", "segment", "span"), layout.num_records)}
        if not self._has_all_of_its_files():
            return False
        if not all(0 <= counters[f"head_{k}"] - counters[f"tail_{k}"] <= size for k, size in sizes.items()):
            return False
        tails, head_row, head_episode = self.tails(), counters["head_row"], counters["head_episode"]
        episodes = self.records("episodes")
        found = {}
        for table, count in (("segments", "num_rows"), ("spans", "num_steps")):
            records = self.records(table)
            records = records[records["episode"] >= tails.episode]
            inside = (records["row"] >= tails.row) & (records[count] <= head_row - records["row"])
            if not (inside & (records[count] > 0) & (records["episode"] < head_episode)).all():
                return False
            found[table] = np.bincount(records["episode"] - tails.episode, records[count], len(episodes))
        last = episodes["last_row"]
        can_be_drawn = episodes["num_rows"] - 1  # each step but the newest row, which has none after it
        return bool(
            ((last >= tails.row) & (last < head_row)).all()
            and np.array_equal(found["segments"], episodes["num_rows"])
            and np.array_equal(found["spans"], can_be_drawn)
        )

    def close(self) -> None:
        """Bring everything to the disk, say so, and let go."""
        for ring in self.rings.values():
            ring.sync()
        self.counters["clean"] = 1
        self.counters.sync()
        self.let_go()

    def let_go(self) -> None:
        for ring in self.rings.values():
            ring.close()

    # ---- tables

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Readers take nothing from the tables while they change. One publication may be part of another.

        What is interrupted in here stays unpublished, and the store is made anew when it is opened again.
        """
        if self._publishing:
            fence()
            yield
            fence()
            return
        if self.counters["version"] % 2:
            raise StoreError("the replay was left half changed by an earlier failure: close it and open it again")
        self.counters["version"] += 1
        fence()
        self._publishing = True
        try:
            yield
        finally:
            self._publishing = False
        fence()
        self.counters["version"] += 1

    def record(self, table: str, number: int) -> Array:
        """A copy of one record, [1]."""
        return self.rings[table].get(np.array([number]))

    def records(self, table: str) -> Array:
        """A copy of all that count, oldest first."""
        kind = table.removesuffix("s")
        return self.rings[table].get(np.arange(self.counters[f"tail_{kind}"], self.counters[f"head_{kind}"]))

    def put_records(self, table: str, records: Array) -> None:
        """Write behind those that count, seen by nobody yet."""
        self.rings[table].write(self.counters[f"head_{table.removesuffix('s')}"], records)

    # ---- space

    def tails(self) -> Tails:
        counters = self.counters
        episode, segment, span, row = (counters[f"tail_{kind}"] for kind in ("episode", "segment", "span", "row"))
        return Tails(episode, segment, span, row, counters.tail_frame.copy())

    def tails_after(self, tails: Tails) -> Tails:
        """As they will be without the oldest episode, and without all space before the oldest segment that counts."""
        counters, episode = self.counters, tails.episode + 1
        segment = self._next("segment", tails.segment, episode)
        span = self._next("span", tails.span, episode)
        if segment == counters["head_segment"]:
            return Tails(episode, segment, span, counters["head_row"], counters.head_frame.copy())
        oldest = self.record("segments", segment)[0]
        return Tails(episode, segment, span, int(oldest["row"]), oldest["frames"])

    def _next(self, kind: str, number: int, episode: int) -> int:
        """The first record, from `number` on, of this episode or a newer one."""
        head = self.counters[f"head_{kind}"]
        while number < head and self.record(f"{kind}s", number)["episode"][0] < episode:
            number += 1
        return number

    def fits(self, needs: Needs, tails: Tails) -> bool:
        counters, layout = self.counters, self.layout
        in_use = counters.head_frame - tails.frames
        records = (
            ("episode", tails.episode, needs.num_episodes),
            ("segment", tails.segment, needs.num_episodes),
            ("span", tails.span, needs.num_spans),
        )
        return (
            counters["head_row"] + needs.num_rows - tails.row <= layout.num_rows
            and all(in_use[i] + needs.num_frames[key] <= layout.num_rows for i, key in enumerate(layout.cameras))
            and all(counters[f"head_{k}"] + n - tail <= layout.num_records for k, tail, n in records)
        )

    def reserve(self, needs: Needs) -> None:
        """Have the disk's space for all of it, or fail while nothing has changed yet."""
        for name in self.layout.columns:
            self.rings[name].reserve(self.counters["head_row"], needs.num_rows)
        for index, key in enumerate(self.layout.cameras):
            self.rings[f"frames/{key}"].reserve(int(self.counters.head_frame[index]), needs.num_frames[key])
        records = {"episode": needs.num_episodes, "segment": needs.num_episodes, "span": needs.num_spans}
        for kind, count in records.items():
            self.rings[f"{kind}s"].reserve(self.counters[f"head_{kind}"], count)

    def give_back(self, tails: Tails) -> None:
        """Let everything before `tails` go."""
        counters = self.counters
        with self.publishing():
            for kind in ("episode", "segment", "span", "row"):
                counters[f"tail_{kind}"] = getattr(tails, kind)
            counters.tail_frame[:] = tails.frames

    # ---- rows

    def rows_of(self, number: int) -> Array:
        """The numbers of an episode's rows, in its order."""
        segments = self.records("segments")
        mine = segments[segments["episode"] == number]
        return np.concatenate([s["row"] + np.arange(s["num_rows"]) for s in mine] or [np.empty(0, np.int64)])

    def column(self, name: str, rows: Array) -> Array:
        return self.rings[name].get(rows)

    def empty_record(self, table: str) -> Array:
        return np.zeros(1, TABLES[table])

    def put_rows(self, row: int, columns: Mapping[str, Array], frames: Mapping[str, Array]) -> Array:
        """Write into free room, seen by nobody yet; returns where each camera's frames begin."""
        starts = self.counters.head_frame.copy()
        for index, key in enumerate(self.layout.cameras):
            self.rings[f"frames/{key}"].write(int(starts[index]), frames[key])
        for name, values in columns.items():
            self.rings[name].write(row, values)
        return starts

    def amend(self, rows: Array, columns: Mapping[str, Array]) -> None:
        """New values, rewards say, in the first of an episode's rows; inside `publishing`."""
        self.counters["relabels"] += 1
        fence()
        for name, values in columns.items():
            self.overwrite(name, rows, values[: len(rows)])
        fence()
        self.counters["relabels"] += 1

    def overwrite(self, name: str, rows: Array, values: Array) -> None:
        """New values in rows that are there, run by run."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        for run, part in zip(np.split(rows, cuts), np.split(values, cuts), strict=True):
            if len(run):
                self.rings[name].write(int(run[0]), part)
