"""The single writer of a replay: a ring of rows that evicts the oldest episodes, as a whole, when it is full.

    replay/
      layout.json           contents of the files; the first episode determines them
      counters              one page: heads and tails of the rings, written after the data they refer to
      rows-<column>.bin     one row per step, and one per last observation
      frames-<camera>.bin   each distinct frame once; rows hold its number
      episodes.bin, segments.bin, spans.bin
      seen.bin              digests of all ids that were ever added

The replay can be rebuilt from episodes and labels. That happens after a power cut, or if a kill interrupted a publication
(`reset_reason` says why). So writes are not fsynced: the kernel still has the writes of a killed process, and after a
power cut the next writer starts with an empty replay.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.image_sizes import Scaling
from dovetail.core.images import seen_robot
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Purpose, Segment
from dovetail.replay._added_ids import BEGUN, DROPPED, AddedIds
from dovetail.replay._blocks import (
    Block,
    end_of_episode_columns,
    make_block,
    make_spans,
    merge_segments,
    read_block,
)
from dovetail.replay._checks import check_labels, check_same_robot, check_segment, check_start
from dovetail.replay._layout import Layout, low_dimensional
from dovetail.replay._prompts import EPISODES_PROMPT, PromptFiles
from dovetail.replay._rings import fence
from dovetail.replay._writer_files import NO_ROW, WriterFiles, WriterLock

__all__ = ["MappedReplayWriter"]


class MappedReplayWriter:
    """Implements ReplayWriter. Refuses a second writer of the same folder, in any process."""

    def __init__(
        self,
        folder: Path,
        *,
        keys: Sequence[str] | None = None,
        capacity_bytes: int = 8 * 10**9,
        capacity_rows: int | None = None,
        keep_demos: bool = True,
        image_size: int | None = None,
        image_scaling: Scaling = "averaged",
    ) -> None:
        self._folder = folder
        self._image_size = image_size  # longer side of the stored images; None: unlimited
        self._image_scaling: Scaling = image_scaling  # of larger ones
        self._keys = None if keys is None else tuple(keys)
        self._capacity = (capacity_bytes, capacity_rows)
        self._keep_demos = keep_demos
        self._lock: WriterLock | None = None
        self._files: WriterFiles | None = None
        self._added_ids = AddedIds(folder / "seen.bin")
        self._prompts = PromptFiles(folder)
        self._numbers: dict[str, int] = {}  # of the stored episodes, oldest first
        self._num_demo_rows = 0
        self.reset_reason: str | None = None

    # ---- open and close

    def open(self) -> str | None:
        """Open the stored replay. If it is damaged or has another layout, delete it and return the reason."""
        if self._lock is not None:
            if self._files is not None:
                self._files.finish_publication()
            return self.reset_reason
        self._lock = WriterLock(self._folder)
        self._numbers, self._num_demo_rows = {}, 0
        self._added_ids.load(0)
        try:
            files = WriterFiles.load(self._folder)
            self.reset_reason = self._resume_from(files) if isinstance(files, WriterFiles) else files
            if self.reset_reason is not None:
                self.reset()
        except BaseException:
            self.close()
            raise
        return self.reset_reason

    def close(self) -> None:
        """Flush everything to disk and release the files, also after an error."""
        files, lock = self._files, self._lock
        self._files = self._lock = None
        try:
            if files is not None:
                self._added_ids.sync()
                files.close()
        finally:
            if files is not None:
                files.close_files()
            if lock is not None:
                lock.release()

    def reset(self) -> None:
        """Delete everything that was ever added."""
        self.open()
        if self._files is not None:
            self._files.close_files()
            self._files = None
        self._numbers, self._num_demo_rows = {}, 0
        WriterFiles.erase(self._folder)
        self._added_ids.load(0)

    def _resume_from(self, files: WriterFiles) -> str | None:
        """Continue with these files; returns the reason if that is impossible, with the files closed."""
        try:
            same_layout = files.layout == self._fit(files.layout.robot)
        except UsageError:
            same_layout = False
        if not same_layout:
            files.close_files()
            return "it was made for other observations or another capacity"
        records = files.records("episodes")
        try:
            self._added_ids.load(files.counters["num_seen"])
            ids = [episode_id.decode() for episode_id in records["id"].tolist()]
        except (StoreError, UnicodeDecodeError) as error:
            files.close_files()
            return str(error)
        self._files = files
        live = ~records["dropped"]
        numbers = range(files.counters["tail_episode"], files.counters["head_episode"])
        self._numbers = {name: number for name, number, is_live in zip(ids, numbers, live, strict=True) if is_live}
        self._num_demo_rows = int(records["num_rows"][records["demo"] & live].sum())
        for name, finished, is_live in zip(ids, records["finished"], live, strict=True):
            self._mark_added(name, "" if finished else BEGUN)  # in case a kill prevented it
            if not is_live:
                self._mark_added(name, DROPPED)
        return None

    def _mark_added(self, episode_id: str, mark: str = "") -> None:
        assert self._files is not None
        self._files.counters["num_seen"] = self._added_ids.add(episode_id + mark)

    def _fit(self, robot: RobotSpec) -> Layout:
        capacity_bytes, capacity_rows = self._capacity
        keys, robot = self._stored_keys(robot), self._seen(robot)
        return Layout.fit(robot, keys, capacity_bytes=capacity_bytes, capacity_rows=capacity_rows)

    def _seen(self, robot: RobotSpec) -> RobotSpec:
        return seen_robot(robot, self._image_size, self._image_scaling)

    def _stored_keys(self, robot: RobotSpec) -> tuple[str, ...]:
        return self._keys if self._keys is not None else low_dimensional(robot)

    # ---- the ReplayWriter contract

    def add(self, episode: Episode, labels: Labels) -> None:
        """Add a whole episode, or the rest of an episode whose first segments `extend` has added."""
        self.open()
        check_start(episode.start, outcome=episode.outcome, judgement=episode.judgement)
        whole = merge_segments(episode)
        check_segment(whole, episode.robot, keys=self._stored_keys(episode.robot))
        check_labels(labels, episode.id, len(episode))
        if not self._was_removed(episode.start, whole=True):
            self._append(episode.start, whole, labels)

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        self.open()
        check_start(start)
        check_segment(segment, start.robot, keys=self._stored_keys(start.robot))
        if not self._was_removed(start, whole=False):
            self._append(start, segment, None)

    def relabel(self, labels: Labels) -> None:
        self.open()
        number, files = self._numbers.get(labels.episode_id), self._files
        if number is None or files is None:
            if any(labels.episode_id + mark in self._added_ids for mark in ("", BEGUN, DROPPED)):
                return  # evicted or dropped
            raise UsageError(f"cannot relabel episode {labels.episode_id}: it was never added to the replay")
        record = files.record("episodes", number)
        if not record["finished"][0]:
            raise UsageError(f"cannot relabel episode {labels.episode_id}: it has not ended")
        if record["labels"][0] != _labels_digest(labels):
            self._update_finished(number, labels, {"reward": labels.rewards, "discount": labels.discounts})

    def _update_finished(self, number: int, labels: Labels, end_columns: Mapping[str, Array]) -> None:
        """Overwrite columns of a finished episode and the label fields of its record."""
        assert self._files is not None
        files, record = self._files, self._files.record("episodes", number)
        check_labels(labels, labels.episode_id, int(record["num_rows"][0]) - 1)
        rows = files.rows_of(number)[:-1]
        _set_label_fields(record, labels)

        def change() -> None:
            files.update_rows(rows, end_columns)
            files.rings["episodes"].write(number, record)

        files.publish(change)

    def drop(self, episode_id: str) -> None:
        self.open()
        files, number = self._files, self._numbers.get(episode_id)
        if files is None:
            return
        self._added_ids.prepare(episode_id + DROPPED)
        if number is None:
            self._mark_added(episode_id, DROPPED)  # an evicted episode must not return either
        else:
            self._drop_stored(files, episode_id, number)

    def _drop_stored(self, files: WriterFiles, episode_id: str, number: int) -> None:
        record = files.record("episodes", number)
        record["dropped"] = True

        def change() -> None:
            files.rings["episodes"].write(number, record)
            self._num_demo_rows -= int(record["num_rows"][0]) if record["demo"][0] else 0
            del self._numbers[episode_id]
            self._mark_added(episode_id, DROPPED)

        files.publish(change)

    def ids(self) -> list[str]:
        """Return the ids of the stored episodes, oldest first."""
        self.open()
        return list(self._numbers)

    def was_added(self, episode_id: str) -> bool:
        """Whether the complete episode was ever added, even if it was evicted since."""
        self.open()
        return episode_id in self._added_ids

    def was_dropped(self, episode_id: str) -> bool:
        self.open()
        return episode_id + DROPPED in self._added_ids

    def skip(self, episode_id: str, robot: RobotSpec, *, num_steps: int) -> None:
        """Mark an episode as added without storing it. Its steps count as older than those added later."""
        self.open()
        if self._files is None:
            self._files = WriterFiles.create(self._folder, self._fit(robot))
        if episode_id not in self._added_ids:
            self._mark_added(episode_id)
            self._files.counters["num_born"] += num_steps + 1

    def total_rows(self, robot: RobotSpec) -> int:
        """Return the number of rows that the replay has for this robot."""
        return self._fit(robot).num_rows

    # ---- appending

    def _was_removed(self, start: EpisodeStart, *, whole: bool) -> bool:
        """Whether the episode was evicted or dropped and must not be added again.

        Two kinds may be added again as a whole: a demonstration if `keep_demos`, and an episode evicted while it ran.
        """
        if start.id in self._numbers:
            return False
        if start.id + DROPPED in self._added_ids:
            return True
        if start.id in self._added_ids:
            return not (whole and self._keep_demos and start.purpose is Purpose.DEMO)
        return not whole and start.id + BEGUN in self._added_ids

    def _append(self, start: EpisodeStart, segment: Segment, labels: Labels | None) -> None:
        """Append the steps that are not stored yet."""
        files = self._files
        if files is None:
            files = self._files = WriterFiles.create(self._folder, self._fit(start.robot))
        start = dataclasses.replace(start, robot=self._seen(start.robot))
        check_same_robot(files.layout.robot, start, keys=files.layout.keys)
        number = self._numbers.get(start.id)
        record = _new_record(files, start, self._prompts) if number is None else files.record("episodes", number)
        num_held = int(record["num_rows"][0])
        if number is not None and record["finished"][0]:
            if labels is not None and not record["labels"][0]:  # finished but not labeled yet
                self._update_finished(number, labels, end_of_episode_columns(files, segment, labels))
            return
        if segment.first > num_held:
            raise UsageError(f"episode {start.id} has a gap: step {segment.first} follows step {num_held - 1}")
        end_columns = None if labels is None else end_of_episode_columns(files, segment, labels)
        block = make_block(
            files,
            segment,
            skip=num_held - segment.first,
            record=record,
            prompts=self._prompt_numbers(files, segment, record),
            end_columns=end_columns,
        )
        if not len(block):
            return
        mark = "" if block.final else BEGUN
        self._added_ids.prepare(start.id + mark)
        self._evict_for(files, block, start.id, record)
        if num_held:  # eviction may have moved it
            number = self._numbers[start.id]
            record = files.record("episodes", number)
        if labels is not None:
            _set_label_fields(record, labels)
        self._put(files, number, record, block, end_columns, mark=mark)

    def _prompt_numbers(self, files: WriterFiles, segment: Segment, record: Array) -> Array:
        """The number of the prompt of each step that is not stored yet, [T]. Other steps may have a wrong one."""
        is_new = record["num_rows"][0] == 0
        newest = EPISODES_PROMPT if is_new else files.column("prompt", record["last_row"])[0]
        numbers = np.full(len(segment), newest, np.int64)
        for change in segment.prompt_changes:
            numbers[change.step - segment.first :] = self._prompts.number(change.prompt)
        return numbers

    def _put(
        self,
        files: WriterFiles,
        number: int | None,
        record: Array,
        block: Block,
        end_columns: Mapping[str, Array] | None = None,
        *,
        mark: str | None = None,
    ) -> None:
        """Write a block into free space, then publish it together with the `end_columns` of the episode's older rows.

        `mark` was prepared, so that it can be added without an error.
        """
        block, record = dataclasses.replace(block, columns=dict(block.columns)), record.copy()
        counters, columns = files.counters, block.columns
        row, held = counters["head_row"], int(record["num_rows"][0])
        links = row + np.arange(len(block))
        columns["previous"], columns["following"] = links - 1, links + 1
        columns["previous"][0] = record["last_row"][0] if held else NO_ROW
        columns["following"][-1] = NO_ROW
        num_born = 0 if "born" in columns else len(block)
        columns.setdefault("born", counters["num_born"] + np.arange(len(block)))
        for index, key in enumerate(files.layout.cameras):
            numbers = columns[f"frame/{key}"]
            fresh = numbers + counters.head_frame[index]
            if held:
                fresh = np.where(numbers < 0, files.column(f"frame/{key}", record["last_row"]), fresh)
            columns[f"frame/{key}"] = fresh
        starts = files.put_rows(row, columns, block.frames)
        spans = make_spans(files, row, block, record["last_row"] if held else None)
        segment = files.empty_record("segments")
        segment["row"], segment["num_rows"], segment["frames"] = row, len(block), starts
        is_new, last_row = number is None, record["last_row"].copy()
        number = counters["head_episode"] if number is None else number
        held_rows = files.rows_of(number) if held and end_columns is not None else None
        segment["episode"] = spans["episode"] = number
        record["num_rows"] += len(block)
        record["last_row"], record["finished"] = links[-1], block.final
        if is_new:
            files.put_records("episodes", record)
        files.put_records("segments", segment)
        files.put_records("spans", spans)
        fence()

        def change() -> None:  # needs no new disk space
            if held:
                files.overwrite("following", last_row, np.array([row]))
                files.rings["episodes"].write(number, record)
            if end_columns is not None and held_rows is not None:
                files.update_rows(held_rows, end_columns)
            for index, key in enumerate(files.layout.cameras):
                counters.head_frame[index] += len(block.frames[key])
            counters["newest_version"] = max(counters["newest_version"], int(columns["policy_version"].max()))
            counters["num_born"] += num_born
            counters["head_row"] = row + len(block)
            counters["head_episode"] += is_new
            counters["head_segment"] += 1
            counters["head_span"] += len(spans)
            self._numbers[record["id"][0].decode()] = number
            self._num_demo_rows += len(block) if record["demo"][0] else 0
            if mark is not None:
                self._mark_added(record["id"][0].decode(), mark)

        files.publish(change)

    # ---- evicting

    def _evict_for(self, files: WriterFiles, block: Block, episode_id: str, record: Array) -> None:
        """Evict whole episodes, oldest first, until the block fits.

        Demonstrations to keep and the block's own episode are moved to the head of the ring instead. Readers see either
        the state before or the state after.
        """
        self._check_capacity(files, block, episode_id, record)
        tails, required = files.tails(), block.required_space
        evicted: list[str] = []
        moved: list[tuple[Array, Block]] = []
        while not files.fits(required, tails):
            if tails.episode == files.counters["head_episode"]:
                raise UsageError(f"the replay has no space for episode {episode_id}. Raise replay.capacity_gb.")
            oldest = files.record("episodes", tails.episode)
            name = oldest["id"][0].decode()
            if self._numbers.get(name) == tails.episode:
                evicted.append(name)
                if name == episode_id or (self._keep_demos and oldest["demo"][0]):
                    moved.append((oldest, read_block(files, tails.episode, oldest)))
                    required += moved[-1][1].required_space
            tails = files.tails_without_oldest(tails)
        if tails.episode == files.counters["tail_episode"]:
            return
        files.reserve(required)

        def change() -> None:
            files.free_space(tails)
            while evicted:
                del self._numbers[evicted.pop()]
            while moved:  # a repetition continues with the first that was not moved
                oldest, old_block = moved[0]
                oldest["num_rows"] = 0
                self._put(files, None, oldest, old_block)
                self._num_demo_rows -= len(old_block) if oldest["demo"][0] else 0
                del moved[0]

        files.publish(change)

    def _check_capacity(self, files: WriterFiles, block: Block, episode_id: str, record: Array) -> None:
        held = int(record["num_rows"][0])
        kept = self._num_demo_rows - (held if record["demo"][0] else 0) if self._keep_demos else 0
        if held + kept + len(block) <= files.layout.num_rows:
            return
        capacity_bytes, capacity_rows = self._capacity
        by_rows = capacity_rows is not None and capacity_rows * files.layout.row_bytes <= capacity_bytes
        setting = "replay.capacity_rows" if by_rows else "replay.capacity_gb"
        raise UsageError(
            f"episode {episode_id} needs at least {held + len(block)} rows, but the replay has {files.layout.num_rows}"
            + (f", of which demonstrations take {kept}" if kept else "")
            + f". A run cannot change its settings: start a new run with a larger {setting}"
            + (", fewer demonstrations, or replay.keep_demos=false" if kept else "")
            + ". `dovetail episodes export` and `import` copy demonstrations to it."
        )


def _new_record(files: WriterFiles, start: EpisodeStart, prompts: PromptFiles) -> Array:
    record = files.empty_record("episodes")
    record["id"], record["robot"], record["task"] = (
        start.id.encode(),
        start.robot.name.encode(),
        start.task.encode(),
    )
    record["prompt"] = prompts.store(start.prompt)
    record["demo"] = start.purpose is Purpose.DEMO
    return record


def _set_label_fields(record: Array, labels: Labels) -> None:
    """Set the fields of an episode's record that depend on its labels."""
    record["labels"], record["success"] = _labels_digest(labels), labels.success
    record["return"] = labels.rewards.sum(dtype=np.float64)


def _labels_digest(labels: Labels) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for values in (labels.rewards, labels.discounts, np.array([labels.success])):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest().encode()  # as text, because numpy strips trailing zero bytes
