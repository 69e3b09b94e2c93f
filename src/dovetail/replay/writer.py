"""The one writer of a replay: a ring of rows, from which the oldest episodes leave, whole ones, to make room.

    replay/
      layout.json           what the files hold; the first episode decides
      counters              one page: heads and tails of the rings, written after what they count
      rows-<column>.bin     one row a step, and one more with each true last observation
      frames-<camera>.bin   each distinct frame once; rows hold its number
      episodes.bin, segments.bin, spans.bin
      seen.bin              digests of all ids that were ever added

Everything here can be made again from episodes and labels, and is, when a power cut or a kill at a bad moment
has left it in doubt (`reset_because` says why). So nothing is fsynced on the way: a killed process leaves its
writes with the kernel, and after a power cut the next writer starts anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Purpose, Segment
from dovetail.replay._blocks import Block, block_of, learned_of, lift, merged, spans_of
from dovetail.replay._book import NOTHING, Book, Writing
from dovetail.replay._checks import check_labels, check_same_robot, check_segment, check_start
from dovetail.replay._files import fence
from dovetail.replay._layout import Layout, low_dimensional
from dovetail.replay._seen import BEGUN, DROPPED, Seen

__all__ = ["ReplayStore"]


class ReplayStore:
    """See the ReplayWriter contract. A second writer of one folder is refused, in any process."""

    def __init__(
        self,
        folder: Path,
        *,
        keys: Sequence[str] | None = None,
        capacity_bytes: int = 8 * 10**9,
        capacity_rows: int | None = None,
        keep_demos: bool = True,
    ) -> None:
        self._folder = folder
        self._keys = None if keys is None else tuple(keys)
        self._capacity = (capacity_bytes, capacity_rows)
        self._keep_demos = keep_demos
        self._writing: Writing | None = None
        self._book: Book | None = None
        self._seen = Seen(folder / "seen.bin")
        self._numbers: dict[str, int] = {}  # of the episodes that are held, oldest first
        self._num_kept_rows = 0  # of demonstrations, which stay
        self.reset_because: str | None = None

    # ---- open and close

    def open(self) -> None:
        """Go on with what is there; what is in doubt, or made for something else, is thrown away."""
        if self._writing is not None:
            return
        self._writing = Writing(self._folder)
        self.reset_because = None
        self._numbers, self._num_kept_rows = {}, 0
        self._seen.load(0)
        try:
            book = Book.load(self._folder)
            if isinstance(book, Book):
                taken = book
                book = self._take_up(taken)
                if book is not None:
                    taken.let_go()
            if book is not None:
                self.reset_because = book
                self.reset()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Bring everything to the disk and let go."""
        if self._book is not None:
            self._book.close()
            self._book = None
        if self._writing is not None:
            self._writing.end()
            self._writing = None

    def reset(self) -> None:
        """Forget everything that was ever added."""
        self.open()
        if self._book is not None:
            self._book.let_go()
            self._book = None
        self._numbers, self._num_kept_rows = {}, 0
        Book.erase(self._folder)
        self._seen.load(0)

    def _take_up(self, book: Book) -> str | None:
        """Go on with these files; or why that cannot be."""
        try:
            if book.layout != self._fit(book.layout.robot):
                raise UsageError("another size")
        except UsageError:
            return "it was made for other observations or another size"
        records = book.records("episodes")
        try:
            self._seen.load(book.counters["num_seen"])
            ids = [episode_id.decode() for episode_id in records["id"].tolist()]
        except (StoreError, UnicodeDecodeError) as error:
            return str(error)
        self._book = book
        live, kept = ~records["dropped"], records["demo"] & ~records["dropped"]
        numbers = range(book.counters["tail_episode"], book.counters["head_episode"])
        self._numbers = {name: number for name, number, is_live in zip(ids, numbers, live, strict=True) if is_live}
        self._num_kept_rows = int(records["num_rows"][kept].sum())
        for name, finished, is_live in zip(ids, records["finished"], live, strict=True):
            self._remember(name, "" if finished else BEGUN)  # a kill may have come before it
            if not is_live:
                self._remember(name, DROPPED)
        return None

    def _remember(self, episode_id: str, mark: str = "") -> None:
        assert self._book is not None
        self._book.counters["num_seen"] = self._seen.add(episode_id + mark)

    def _fit(self, robot: RobotSpec) -> Layout:
        capacity_bytes, capacity_rows = self._capacity
        keys = self._wanted(robot)
        return Layout.fit(robot, keys, capacity_bytes=capacity_bytes, capacity_rows=capacity_rows)

    def _wanted(self, robot: RobotSpec) -> tuple[str, ...]:
        return self._keys if self._keys is not None else low_dimensional(robot)

    # ---- the contract

    def add(self, episode: Episode, labels: Labels) -> None:
        """A whole episode at once, or the rest of one whose segments came before it."""
        self.open()
        check_start(episode.start, outcome=episode.outcome, judgement=episode.judgement)
        whole = merged(episode)
        check_segment(whole, episode.robot, keys=self._wanted(episode.robot))
        check_labels(labels, episode.id, len(episode))
        if not self._is_gone(episode.start, whole=True):
            self._append(episode.start, whole, labels)

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        self.open()
        check_start(start)
        check_segment(segment, start.robot, keys=self._wanted(start.robot))
        if not self._is_gone(start, whole=False):
            self._append(start, segment, None)

    def relabel(self, labels: Labels) -> None:
        self.open()
        number, book = self._numbers.get(labels.episode_id), self._book
        if number is None or book is None:
            if any(labels.episode_id + mark in self._seen for mark in ("", BEGUN, DROPPED)):
                return  # it has left
            raise UsageError(f"cannot label episode {labels.episode_id}: it was never added to the replay")
        record = book.record("episodes", number)
        if not record["finished"][0]:
            raise UsageError(f"cannot label episode {labels.episode_id}: it has not ended")
        if record["labels"][0] != _labels_digest(labels):
            self._amend(number, labels, {"reward": labels.rewards, "discount": labels.discounts})

    def _amend(self, number: int, labels: Labels, learned: Mapping[str, Array]) -> None:
        """Put into a finished episode's rows what was learned of them."""
        assert self._book is not None
        book, record = self._book, self._book.record("episodes", number)
        check_labels(labels, labels.episode_id, int(record["num_rows"][0]) - 1)
        rows = book.rows_of(number)[:-1]
        _note(record, labels)
        with book.publishing():
            book.amend(rows, learned)
            book.rings["episodes"].write(number, record)

    def drop(self, episode_id: str) -> None:
        self.open()
        book, number = self._book, self._numbers.pop(episode_id, None)
        if book is None:
            return
        if number is not None:
            record = book.record("episodes", number)
            record["dropped"] = True
            self._num_kept_rows -= int(record["num_rows"][0]) if record["demo"][0] else 0
            with book.publishing():
                book.rings["episodes"].write(number, record)
        self._remember(episode_id, DROPPED)  # also of one that has left: it is not to come back

    def ids(self) -> list[str]:
        """Episodes that are held, oldest first."""
        self.open()
        return list(self._numbers)

    def knows(self, episode_id: str) -> bool:
        """Whether it was ever added, all of it, held or not."""
        self.open()
        return episode_id in self._seen

    def was_dropped(self, episode_id: str) -> bool:
        self.open()
        return episode_id + DROPPED in self._seen

    def skip(self, episode_id: str, robot: RobotSpec, *, num_steps: int) -> None:
        """Count an episode as known without adding it: too old to come back, and older than what does."""
        self.open()
        if self._book is None:
            self._book = Book.create(self._folder, self._fit(robot))
        if episode_id not in self._seen:
            self._book.counters["num_born"] += num_steps + 1
            self._remember(episode_id)

    def room(self, robot: RobotSpec) -> int:
        """Rows there are, or would be, in all."""
        return self._fit(robot).num_rows

    # ---- appending

    def _is_gone(self, start: EpisodeStart, *, whole: bool) -> bool:
        """Whether it was here and has left, or was dropped. Two come back, as a whole: a demonstration that is to stay,
        and what had to leave while it was still running, since nobody could learn from all of it."""
        if start.id in self._numbers:
            return False
        if start.id + DROPPED in self._seen:
            return True
        if start.id in self._seen:
            return not (whole and self._keep_demos and start.purpose is Purpose.DEMO)
        return not whole and start.id + BEGUN in self._seen

    def _append(self, start: EpisodeStart, segment: Segment, labels: Labels | None) -> None:
        """Put in what is not here yet."""
        book = self._book
        if book is None:
            book = self._book = Book.create(self._folder, self._fit(start.robot))
        check_same_robot(book.layout.robot, start, keys=book.layout.keys)
        number = self._numbers.get(start.id)
        record = _new_record(book, start) if number is None else book.record("episodes", number)
        num_held = int(record["num_rows"][0])
        if number is not None and record["finished"][0]:
            if labels is not None and not record["labels"][0]:  # it has ended, but was not labelled yet
                self._amend(number, labels, learned_of(book, segment, labels))
            return
        if segment.first > num_held:
            raise UsageError(f"episode {start.id} has a gap: step {segment.first} follows {num_held - 1}")
        learned = None if labels is None else learned_of(book, segment, labels)
        block = block_of(book, segment, skip=num_held - segment.first, record=record, learned=learned)
        if not len(block):
            return
        self._seen.reserve(2)
        self._make_room(book, block, start.id, record)
        if num_held:  # it may have been moved
            number = self._numbers[start.id]
            record = book.record("episodes", number)
        if labels is not None:
            _note(record, labels)
        self._put(book, number, record, block, learned)
        self._remember(start.id, "" if block.final else BEGUN)

    def _put(
        self,
        book: Book,
        number: int | None,
        record: Array,
        block: Block,
        learned: Mapping[str, Array] | None = None,
    ) -> None:
        """Write a block into room that is free, then publish it, with what was `learned` of the rows before it."""
        counters, columns = book.counters, block.columns
        row, held = counters["head_row"], int(record["num_rows"][0])
        links = row + np.arange(len(block))
        columns["previous"], columns["following"] = links - 1, links + 1
        columns["previous"][0] = record["last_row"][0] if held else NOTHING
        columns["following"][-1] = NOTHING
        num_born = 0 if "born" in columns else len(block)
        columns.setdefault("born", counters["num_born"] + np.arange(len(block)))
        for index, key in enumerate(book.layout.cameras):
            numbers = columns[f"frame/{key}"]
            fresh = numbers + counters.head_frame[index]
            if held:
                fresh = np.where(numbers < 0, book.column(f"frame/{key}", record["last_row"]), fresh)
            columns[f"frame/{key}"] = fresh
        starts = book.put_rows(row, columns, block.frames)
        spans = spans_of(book, row, block, record["last_row"] if held else None)
        segment = book.empty_record("segments")
        segment["row"], segment["num_rows"], segment["frames"] = row, len(block), starts
        is_new, last_row = number is None, record["last_row"].copy()
        number = counters["head_episode"] if number is None else number
        held_rows = book.rows_of(number) if held and learned is not None else None
        segment["episode"] = spans["episode"] = number
        record["num_rows"] += len(block)
        record["last_row"], record["finished"] = links[-1], block.final
        if is_new:
            book.put_records("episodes", record)
        book.put_records("segments", segment)
        book.put_records("spans", spans)
        fence()
        with book.publishing():  # nothing in here takes space on the disk
            if held:
                book.overwrite("following", last_row, np.array([row]))
                book.rings["episodes"].write(number, record)
            if learned is not None and held_rows is not None:
                book.amend(held_rows, learned)
            for index, key in enumerate(book.layout.cameras):
                counters.head_frame[index] += len(block.frames[key])
            counters["newest_version"] = max(counters["newest_version"], int(columns["policy_version"].max()))
            counters["num_born"] += num_born
            counters["head_row"] = row + len(block)
            counters["head_episode"] += is_new
            counters["head_segment"] += 1
            counters["head_span"] += len(spans)
        self._numbers[record["id"][0].decode()] = number
        self._num_kept_rows += len(block) if record["demo"][0] else 0

    # ---- making room

    def _make_room(self, book: Book, block: Block, episode_id: str, record: Array) -> None:
        """Let the oldest episodes go, whole ones, until the block fits. What stays and is in the way (demonstrations, and
        the rows that the block belongs to) is put in again behind the rest; readers see that done, or not yet."""
        self._check_capacity(book, block, episode_id, record)
        tails, needs = book.tails(), block.needs
        leaving: list[str] = []
        moving: list[tuple[Array, Block]] = []
        while not book.fits(needs, tails):
            if tails.episode == book.counters["head_episode"]:
                raise UsageError(f"the replay has no room for episode {episode_id}: raise replay.capacity_gb")
            oldest = book.record("episodes", tails.episode)
            name = oldest["id"][0].decode()
            if self._numbers.get(name) == tails.episode:
                leaving.append(name)
                if name == episode_id or (self._keep_demos and oldest["demo"][0]):
                    moving.append((oldest, lift(book, tails.episode, oldest)))
                    needs += moving[-1][1].needs
            tails = book.tails_after(tails)
        if tails.episode == book.counters["tail_episode"]:
            return
        book.reserve(needs)
        with book.publishing():
            book.give_back(tails)
            for name in leaving:
                del self._numbers[name]
            for oldest, lifted in moving:
                self._num_kept_rows -= len(lifted) if oldest["demo"][0] else 0
                oldest["num_rows"] = 0
                self._put(book, None, oldest, lifted)

    def _check_capacity(self, book: Book, block: Block, episode_id: str, record: Array) -> None:
        held = int(record["num_rows"][0])
        kept = self._num_kept_rows - (held if record["demo"][0] else 0) if self._keep_demos else 0
        if held + kept + len(block) <= book.layout.num_rows:
            return
        capacity_bytes, capacity_rows = self._capacity
        by_rows = capacity_rows is not None and capacity_rows * book.layout.row_bytes <= capacity_bytes
        bound = "replay.capacity_rows" if by_rows else "replay.capacity_gb"
        raise UsageError(
            f"episode {episode_id} takes {held + len(block)} rows or more, "
            + (f"beside demonstrations of {kept} rows " if kept else "")
            + f"the replay has room for {book.layout.num_rows}: a run keeps its settings, so start another with a "
            f"larger {bound}"
            + (", fewer demonstrations, or replay.keep_demos=false" if kept else "")
            + " (`dovetail episodes export` and `import` take demonstrations along)"
        )


def _new_record(book: Book, start: EpisodeStart) -> Array:
    record = book.empty_record("episodes")
    record["id"], record["robot"], record["task"] = (
        start.id.encode(),
        start.robot.name.encode(),
        start.task.encode(),
    )
    record["prompt"] = encode_prompt(start.prompt).tobytes()
    record["demo"] = start.purpose is Purpose.DEMO
    return record


def _note(record: Array, labels: Labels) -> None:
    """What of an episode's labels its record tells."""
    record["labels"], record["success"] = _labels_digest(labels), labels.success
    record["return"] = labels.rewards.sum(dtype=np.float64)


def _labels_digest(labels: Labels) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for values in (labels.rewards, labels.discounts, np.array([labels.success])):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest().encode()  # text: a trailing zero byte would be lost in a field of bytes
