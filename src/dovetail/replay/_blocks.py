"""Blocks of rows to append to the ring: made from segments, or read from the ring to be moved to its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.core.achieved import achieved_actions
from dovetail.core.errors import UsageError
from dovetail.core.images import resize_images
from dovetail.core.types import Array, Episode, Labels, Observation, Segment, Source
from dovetail.replay._layout import TABLES, low_dimensional
from dovetail.replay._writer_files import RequiredSpace, WriterFiles

__all__ = ["Block", "end_of_episode_columns", "make_block", "make_spans", "merge_segments", "read_block"]


@dataclass(slots=True)
class Block:
    """Rows of one episode to append to the ring.

    Frame numbers are relative: 0 is the block's first frame, -1 is the newest stored frame of the episode.
    """

    columns: dict[str, Array]
    frames: dict[str, Array]
    num_steps: int  # rows, without the row of the last observation
    final: bool

    def __len__(self) -> int:
        return len(self.columns["reward"])

    @property
    def required_space(self) -> RequiredSpace:
        return RequiredSpace(
            num_rows=len(self),
            num_frames={key: len(frames) for key, frames in self.frames.items()},
            num_spans=2 + _num_changes(self),
        )


def end_of_episode_columns(files: WriterFiles, whole: Segment, labels: Labels) -> dict[str, Array]:
    """Columns [T, ...] that are known only after the episode has ended."""
    end_columns = {"reward": labels.rewards, "discount": labels.discounts}
    if "achieved" in files.layout.columns:
        last = whole.last_observation
        assert last is not None, "merge_segments() refuses episodes without a last observation"
        observations = {
            key: _with_last(whole.columns[f"observation/{key}"], last, key)
            for key in low_dimensional(files.layout.robot)
            if f"observation/{key}" in whole.columns and key in last.values
        }
        end_columns["achieved"] = achieved_actions(files.layout.robot, observations, whole.columns["executed"])
    return end_columns


def make_block(
    files: WriterFiles,
    segment: Segment,
    *,
    skip: int,
    record: Array,
    prompts: Array,
    end_columns: Mapping[str, Array] | None,
) -> Block:
    """Make a block of the segment's rows after the first `skip`; a whole episode comes with its `end_columns`.

    `prompts` [T] are the numbers of the prompts of the segment's steps.
    """
    steps = {name: column[skip:] for name, column in segment.columns.items()}
    num_steps, last = len(steps["executed"]), segment.last_observation
    columns = {
        "action": steps["executed"],
        "reward": np.zeros(num_steps, np.float32),
        "discount": np.ones(num_steps, np.float32),
        "human": steps["source"] == Source.HUMAN,
        "policy_version": steps["policy_version"],
        "prompt": prompts[skip:],
    }
    if "human_axes" in files.layout.columns:  # without the column, a person drives all axes
        recorded = steps.get("extra/human_axes")
        columns["human_axes"] = np.ones(steps["executed"].shape, np.bool_) if recorded is None else recorded
    if "achieved" in files.layout.columns:
        columns["achieved"] = np.full_like(steps["executed"], np.nan)
    if end_columns is not None:
        columns |= {name: values[skip:] for name, values in end_columns.items()}
    if last is not None:  # one more row for the last observation, without an action
        columns = {
            name: np.concatenate((v, np.zeros_like(v, shape=(1, *v.shape[1:])))) for name, v in columns.items()
        }
    frames = {}
    for key in files.layout.keys:
        values = _with_last(steps[f"observation/{key}"], last, key)
        if key not in files.layout.cameras:
            columns[f"observation/{key}"] = values
            continue
        values = resize_images(values, files.layout.frames[key])
        latest = None
        if record["num_rows"][0]:
            latest = files.column(f"frames/{key}", files.column(f"frame/{key}", record["last_row"]))[0]
        frames[key], columns[f"frame/{key}"] = _distinct_frames(values, latest)
    return Block(columns=columns, frames=frames, num_steps=num_steps, final=last is not None)


def read_block(files: WriterFiles, number: int, record: Array) -> Block:
    """Read all rows of an episode from the ring."""
    rows = files.rows_of(number)
    names = [name for name in files.layout.columns if name not in ("previous", "following")]
    columns = {name: files.column(name, rows) for name in names}
    frames = {}
    for key in files.layout.cameras:
        numbers, columns[f"frame/{key}"] = np.unique(columns[f"frame/{key}"], return_inverse=True)
        frames[key] = files.column(f"frames/{key}", numbers)
    final = bool(record["finished"][0])
    return Block(columns=columns, frames=frames, num_steps=len(rows) - final, final=final)


def merge_segments(episode: Episode) -> Segment:
    """Return the episode as one segment."""
    num_steps = 0
    for segment in episode.segments:
        if segment.first != num_steps:
            raise UsageError(f"episode {episode.id} has a gap: step {segment.first} follows step {num_steps - 1}")
        num_steps += len(segment)
    if not num_steps or episode.segments[-1].last_observation is None:
        raise UsageError(f"episode {episode.id} has no steps or no last observation")
    if len(episode.segments) == 1:
        return episode.segments[0]
    names = episode.segments[0].columns
    return Segment(
        episode_id=episode.id,
        first=0,
        final=True,
        columns={name: episode.column(name) for name in names},
        last_observation=episode.last_observation,
        prompt_changes=episode.prompt_changes,
    )


def make_spans(files: WriterFiles, row: int, block: Block, held: Array | None) -> Array:
    """Return the spans of steps that can be sampled once the block is stored at `row`.

    A step can be sampled as soon as a row follows it. `held` is the row of the episode's newest stored step, if any.
    """
    num_steps = block.num_steps if block.final else block.num_steps - 1
    rows = row + np.arange(num_steps)
    human, version, born = (block.columns[name][:num_steps] for name in ("human", "policy_version", "born"))
    if held is not None:
        rows = np.concatenate((held, rows))
        human, version, born = (
            np.concatenate((files.column(name, held), values))
            for name, values in (("human", human), ("policy_version", version), ("born", born))
        )
    if not len(rows):
        return np.zeros(0, TABLES["spans"])
    new = (
        (np.diff(rows) != 1)
        | (np.diff(born) != 1)
        | (np.diff(human.astype(np.int8)) != 0)
        | (np.diff(version) != 0)
    )
    first = np.concatenate(([0], np.flatnonzero(new) + 1))
    spans = np.zeros(len(first), TABLES["spans"])
    spans["row"], spans["human"], spans["version"], spans["born"] = (
        values[first] for values in (rows, human, version, born)
    )
    spans["num_steps"] = np.diff(first, append=len(rows))
    return spans


def _num_changes(block: Block) -> int:
    """Upper bound of the number of new spans within the block. A moved episode may have gaps in `born`."""
    human, version = block.columns["human"], block.columns["policy_version"]
    changes = (human[1:] != human[:-1]) | (version[1:] != version[:-1])
    if "born" in block.columns:
        changes |= np.diff(block.columns["born"]) != 1
    return int(changes.sum())


def _with_last(values: Array, last: Observation | None, key: str) -> Array:
    return values if last is None else np.concatenate((values, last.values[key][None]))


def _distinct_frames(frames: Array, before: Array | None) -> tuple[Array, Array]:
    """Return the frames that differ from the frame before them, and for each row the number of its frame.

    Numbers start at 0; -1 is the frame `before`.
    """
    fresh = np.ones(len(frames), bool)
    previous = before
    for row, frame in enumerate(frames):
        fresh[row] = previous is None or not np.array_equal(frame, previous)
        previous = frame
    return (frames if fresh.all() else frames[fresh]), np.cumsum(fresh) - 1
