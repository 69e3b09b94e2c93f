"""The writer's access to the files of a replay: open, check, append, free space.

Readers rely on this order: the writer publishes that it has freed space, writes rows and frames into it, then publishes
all of them at once.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from dovetail.core.clock import boot_id
from dovetail.core.disk import dump_json, fsync_folder, load_json, read_file, write_atomic
from dovetail.core.errors import StoreError, shown
from dovetail.core.types import Array
from dovetail.replay._layout import SCHEMA, TABLES, Layout
from dovetail.replay._rings import Counters, Ring, fence, ring_paths, short_ring

__all__ = ["NO_ROW", "RequiredSpace", "Tails", "WriterFiles", "WriterLock"]

NO_ROW = -1  # link of an episode's first and last row


def _refuse() -> None:
    raise StoreError("an earlier failure interrupted a change of the replay. Close it and open it again.")


class WriterLock:
    """File lock that allows one writer of a replay, in any process."""

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
            raise StoreError(f"another process is writing the replay in {folder}; only one may") from error

    def release(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Tails:
    """Number of the oldest valid item of each kind."""

    episode: int
    segment: int
    span: int
    row: int
    frames: Array  # [cameras]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSpace:
    """Number of items to append to each ring."""

    num_rows: int
    num_spans: int  # upper bound
    num_episodes: int = 1
    num_frames: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: RequiredSpace) -> RequiredSpace:
        return RequiredSpace(
            num_rows=self.num_rows + other.num_rows,
            num_spans=self.num_spans + other.num_spans,
            num_episodes=self.num_episodes + other.num_episodes,
            num_frames={key: count + other.num_frames[key] for key, count in self.num_frames.items()},
        )


class WriterFiles:
    """Read and write rows, frames and records by number. Use `create` or `load`, and hold the `WriterLock`."""

    def __init__(self, folder: Path, layout: Layout, counters: Counters) -> None:
        self.layout = layout
        self.counters = counters
        self._publishing = False
        self._unfinished: Callable[[], None] | None = None  # publication that a failed write has interrupted
        self.rings = {
            name: Ring(path, num_items=num_items, shape=shape, dtype=dtype, writable=True)
            for name, (path, num_items, shape, dtype) in ring_paths(folder, layout).items()
        }
        counters["clean"] = 0
        counters.boot_id = boot_id()
        try:
            counters.sync()
        except StoreError:
            self.close_files()
            raise

    @staticmethod
    def create(folder: Path, layout: Layout) -> WriterFiles:
        WriterFiles.erase(folder)  # a killed writer may have left files and counters
        counters = Counters(folder / "counters", writable=True)
        counters["magic"] = Counters.MAGIC
        files = WriterFiles(folder, layout, counters)
        try:
            write_atomic(folder / "layout.json", dump_json(layout.to_json(), indent=1))
        except OSError as error:
            files.close_files()
            raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
        return files

    @staticmethod
    def load(folder: Path) -> WriterFiles | str | None:
        """Return the stored replay, the reason why it cannot be used, or None if there is none."""
        path = folder / "layout.json"
        if not path.exists():
            return None
        try:
            data = load_json(read_file(path), name=str(path), indent=1)
            if data["schema"] != SCHEMA:
                return f"its schema is {shown(data['schema'])}, but this version writes {SCHEMA}"
            layout = Layout.from_json(data)
            for file, num_items, shape, dtype in ring_paths(folder, layout).values():
                Ring(file, num_items=num_items, shape=shape, dtype=dtype)
            counters = Counters(folder / "counters", writable=True)
        except (StoreError, KeyError, TypeError, ValueError) as error:
            return shown(error, max_chars=300)
        if counters["magic"] != Counters.MAGIC:
            return "its counters are damaged"
        if counters["retired"]:
            return "a reset was not completed"
        if counters["version"] % 2:
            return "its writer was killed while it was publishing"
        if not counters["clean"] and counters.boot_id != boot_id():
            return "the machine went down while a writer was active"
        files = WriterFiles(folder, layout, counters)
        if not files.is_consistent():
            files.close_files()
            return "its tables are damaged"
        return files

    @staticmethod
    def erase(folder: Path) -> None:
        """Delete everything. Readers that have the files open are notified through the `retired` counter."""
        if (folder / "counters").exists():
            try:
                old = Counters(folder / "counters", writable=True)
                old["retired"] = 1
                old["version"] += 2
            except StoreError:
                pass  # damaged counters: no reader can have them open
        try:
            (folder / "layout.json").unlink(missing_ok=True)  # first: without it the other files are ignored
            fsync_folder(folder)
            for path in folder.iterdir():
                if path.suffix in (".bin", ".tmp") or path.name == "counters":
                    path.unlink()
        except OSError as error:
            raise StoreError(f"cannot delete {folder}: {error.strerror}") from error

    def is_consistent(self) -> bool:
        """Whether counters and tables refer to the same rows. Reads only the tables."""
        counters, layout = self.counters, self.layout
        sizes = {"row": layout.num_rows, **dict.fromkeys(("episode", "segment", "span"), layout.num_records)}
        if short_ring(layout, self.rings, counters) is not None:
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
        num_samplable = episodes["num_rows"] - 1  # all but the newest row, which no row follows
        return bool(
            ((last >= tails.row) & (last < head_row)).all()
            and np.array_equal(found["segments"], episodes["num_rows"])
            and np.array_equal(found["spans"], num_samplable)
        )

    def close(self) -> None:
        """Flush everything to disk, mark the files as clean and close them. After an error they are closed, not clean."""
        with suppress(StoreError):  # else the next `load` refuses the files
            self.finish_publication()
        try:
            for ring in self.rings.values():
                ring.sync()
            self.counters["clean"] = 1
            self.counters.sync()
        except StoreError:
            self.counters["clean"] = 0
            raise
        finally:
            self.close_files()

    def close_files(self) -> None:
        self._unfinished = None
        for ring in self.rings.values():
            ring.close()

    # ---- tables

    def publish(self, change: Callable[[], None]) -> None:
        """Change tables while readers do not read them. A change may publish others.

        If a write fails, `finish_publication` repeats the change, so it must be repeatable: it counts only after its last
        write. Until then readers keep what they have read, and the next `load` refuses the files.
        """
        if self._publishing:
            fence()
            change()
            fence()
            return
        self.finish_publication()
        self.counters["version"] += 1
        fence()
        self._unfinished = change
        self.finish_publication()

    def finish_publication(self) -> None:
        """Repeat the change that a failed write has interrupted, if any."""
        if self._unfinished is None:
            return
        change, self._unfinished = self._unfinished, _refuse  # after any other error it cannot be repeated
        self._publishing = True
        try:
            change()
        except StoreError:
            self._unfinished = change
            raise
        finally:
            self._publishing = False
        self._unfinished = None
        fence()
        self.counters["version"] += 1

    def record(self, table: str, number: int) -> Array:
        """Copy one record, [1]."""
        return self.rings[table].get(np.array([number]))

    def records(self, table: str) -> Array:
        """Copy all valid records, oldest first."""
        kind = table.removesuffix("s")
        return self.rings[table].get(np.arange(self.counters[f"tail_{kind}"], self.counters[f"head_{kind}"]))

    def put_records(self, table: str, records: Array) -> None:
        """Write records after the valid ones, without publishing them."""
        self.rings[table].write(self.counters[f"head_{table.removesuffix('s')}"], records)

    # ---- space

    def tails(self) -> Tails:
        counters = self.counters
        episode, segment, span, row = (counters[f"tail_{kind}"] for kind in ("episode", "segment", "span", "row"))
        return Tails(episode, segment, span, row, counters.tail_frame.copy())

    def tails_without_oldest(self, tails: Tails) -> Tails:
        """Return the tails after the oldest episode, and all space before the next valid segment, are freed."""
        counters, episode = self.counters, tails.episode + 1
        segment = self._next("segment", tails.segment, episode)
        span = self._next("span", tails.span, episode)
        if segment == counters["head_segment"]:
            return Tails(episode, segment, span, counters["head_row"], counters.head_frame.copy())
        oldest = self.record("segments", segment)[0]
        return Tails(episode, segment, span, int(oldest["row"]), oldest["frames"])

    def _next(self, kind: str, number: int, episode: int) -> int:
        """Find the first record from `number` on that belongs to this episode or a newer one."""
        head = self.counters[f"head_{kind}"]
        while number < head and self.record(f"{kind}s", number)["episode"][0] < episode:
            number += 1
        return number

    def fits(self, required: RequiredSpace, tails: Tails) -> bool:
        counters, layout = self.counters, self.layout
        in_use = counters.head_frame - tails.frames
        records = (
            ("episode", tails.episode, required.num_episodes),
            ("segment", tails.segment, required.num_episodes),
            ("span", tails.span, required.num_spans),
        )
        return (
            counters["head_row"] + required.num_rows - tails.row <= layout.num_rows
            and all(
                in_use[i] + required.num_frames[key] <= layout.num_rows for i, key in enumerate(layout.cameras)
            )
            and all(counters[f"head_{k}"] + n - tail <= layout.num_records for k, tail, n in records)
        )

    def reserve(self, required: RequiredSpace) -> None:
        """Reserve disk space. Raises StoreError before anything has changed."""
        for name in self.layout.columns:
            self.rings[name].reserve(self.counters["head_row"], required.num_rows)
        for index, key in enumerate(self.layout.cameras):
            self.rings[f"frames/{key}"].reserve(int(self.counters.head_frame[index]), required.num_frames[key])
        records = {"episode": required.num_episodes, "segment": required.num_episodes, "span": required.num_spans}
        for kind, count in records.items():
            self.rings[f"{kind}s"].reserve(self.counters[f"head_{kind}"], count)

    def free_space(self, tails: Tails) -> None:
        """Free everything before `tails`."""
        counters = self.counters

        def free() -> None:
            counters["tail_episode"], counters["tail_segment"] = tails.episode, tails.segment
            counters["tail_span"], counters["tail_row"] = tails.span, tails.row
            counters.tail_frame[:] = tails.frames

        self.publish(free)

    # ---- rows

    def rows_of(self, number: int) -> Array:
        """Return the numbers of an episode's rows in time order."""
        segments = self.records("segments")
        mine = segments[segments["episode"] == number]
        return np.concatenate([s["row"] + np.arange(s["num_rows"]) for s in mine] or [np.empty(0, np.int64)])

    def column(self, name: str, rows: Array) -> Array:
        return self.rings[name].get(rows)

    def empty_record(self, table: str) -> Array:
        return np.zeros(1, TABLES[table])

    def put_rows(self, row: int, columns: Mapping[str, Array], frames: Mapping[str, Array]) -> Array:
        """Write rows and frames into free space, without publishing them; returns each camera's first frame number."""
        starts = self.counters.head_frame.copy()
        for index, key in enumerate(self.layout.cameras):
            self.rings[f"frames/{key}"].write(int(starts[index]), frames[key])
        for name, values in columns.items():
            self.rings[name].write(row, values)
        return starts

    def update_rows(self, rows: Array, columns: Mapping[str, Array]) -> None:
        """Overwrite columns, such as rewards, of an episode's first rows. Call it inside `publish`."""
        self.counters["relabels"] |= 1  # it is odd already if a failed write is repeated
        fence()
        for name, values in columns.items():
            self.overwrite(name, rows, values[: len(rows)])
        fence()
        self.counters["relabels"] += 1

    def overwrite(self, name: str, rows: Array, values: Array) -> None:
        """Overwrite a column of existing rows."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        for run, part in zip(np.split(rows, cuts), np.split(values, cuts), strict=True):
            if len(run):
                self.rings[name].write(int(run[0]), part)
