"""Steps on their way into the ring: cut out of segments, or lifted out of the ring to be put in again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.core.achieved import achieved_actions
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Labels, Observation, Segment, Source
from dovetail.replay._book import Book, Needs
from dovetail.replay._layout import TABLES, low_dimensional

__all__ = ["Block", "block_of", "learned_of", "lift", "merged", "spans_of"]


@dataclass(slots=True)
class Block:
    """Rows of one episode on their way into the ring. Frames are counted from the first of them; -1 is the last one
    of the rows that are there already."""

    columns: dict[str, Array]
    frames: dict[str, Array]
    num_steps: int  # rows, but for a true last observation
    final: bool

    def __len__(self) -> int:
        return len(self.columns["reward"])

    @property
    def needs(self) -> Needs:
        return Needs(
            num_rows=len(self),
            num_frames={key: len(frames) for key, frames in self.frames.items()},
            num_spans=2 + _num_changes(self),
        )


def learned_of(book: Book, whole: Segment, labels: Labels) -> dict[str, Array]:
    """What is known of an episode's steps only when it has ended, [T, ...] each."""
    learned = {"reward": labels.rewards, "discount": labels.discounts}
    if "achieved" in book.layout.columns:
        last = whole.last_observation
        assert last is not None, "merged() has seen to it"
        observations = {
            key: _with_last(whole.columns[f"observation/{key}"], last, key)
            for key in low_dimensional(book.layout.robot)
            if f"observation/{key}" in whole.columns and key in last.values
        }
        learned["achieved"] = achieved_actions(book.layout.robot, observations, whole.columns["executed"])
    return learned


def block_of(
    book: Book, segment: Segment, *, skip: int, record: Array, learned: Mapping[str, Array] | None
) -> Block:
    """The rows of a segment that are not here yet; of a whole episode with what was `learned` of it."""
    steps = {name: column[skip:] for name, column in segment.columns.items()}
    num_steps, last = len(steps["executed"]), segment.last_observation
    columns = {
        "action": steps["executed"],
        "reward": np.zeros(num_steps, np.float32),
        "discount": np.ones(num_steps, np.float32),
        "human": steps["source"] == Source.HUMAN,
        "policy_version": steps["policy_version"],
    }
    if "achieved" in book.layout.columns:
        columns["achieved"] = np.full_like(steps["executed"], np.nan)
    if learned is not None:
        columns |= {name: values[skip:] for name, values in learned.items()}
    if last is not None:  # a row for what was seen last: nothing was done there
        columns = {
            name: np.concatenate((v, np.zeros_like(v, shape=(1, *v.shape[1:])))) for name, v in columns.items()
        }
    frames = {}
    for key in book.layout.keys:
        values = _with_last(steps[f"observation/{key}"], last, key)
        if key not in book.layout.cameras:
            columns[f"observation/{key}"] = values
            continue
        latest = None
        if record["num_rows"][0]:
            latest = book.column(f"frames/{key}", book.column(f"frame/{key}", record["last_row"]))[0]
        frames[key], columns[f"frame/{key}"] = _distinct(values, latest)
    return Block(columns=columns, frames=frames, num_steps=num_steps, final=last is not None)


def lift(book: Book, number: int, record: Array) -> Block:
    """An episode's rows, out of the ring."""
    rows = book.rows_of(number)
    names = [name for name in book.layout.columns if name not in ("previous", "following")]
    columns = {name: book.column(name, rows) for name in names}
    frames = {}
    for key in book.layout.cameras:
        numbers, columns[f"frame/{key}"] = np.unique(columns[f"frame/{key}"], return_inverse=True)
        frames[key] = book.column(f"frames/{key}", numbers)
    final = bool(record["finished"][0])
    return Block(columns=columns, frames=frames, num_steps=len(rows) - final, final=final)


def merged(episode: Episode) -> Segment:
    """All of it as one segment."""
    num_steps = 0
    for segment in episode.segments:
        if segment.first != num_steps:
            raise UsageError(f"episode {episode.id} has a gap: step {segment.first} follows {num_steps - 1}")
        num_steps += len(segment)
    if not num_steps or episode.segments[-1].last_observation is None:
        raise UsageError(f"episode {episode.id} has no steps, or no last observation")
    if len(episode.segments) == 1:
        return episode.segments[0]
    names = episode.segments[0].columns
    return Segment(
        episode_id=episode.id,
        first=0,
        final=True,
        columns={name: episode.column(name) for name in names},
        last_observation=episode.last_observation,
    )


def spans_of(book: Book, row: int, block: Block, held: Array | None) -> Array:
    """Runs of steps that can be drawn now: a step can as soon as there is a row after it. `held` is the row of the
    episode's newest step so far, if there is one."""
    num_steps = block.num_steps if block.final else block.num_steps - 1
    rows = row + np.arange(num_steps)
    human, version, born = (block.columns[name][:num_steps] for name in ("human", "policy_version", "born"))
    if held is not None:
        rows = np.concatenate((held, rows))
        human, version, born = (
            np.concatenate((book.column(name, held), values))
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
    """After how many rows a new span begins, at least as many; where a moved episode once had a gap, one does."""
    human, version = block.columns["human"], block.columns["policy_version"]
    changes = (human[1:] != human[:-1]) | (version[1:] != version[:-1])
    if "born" in block.columns:
        changes |= np.diff(block.columns["born"]) != 1
    return int(changes.sum())


def _with_last(values: Array, last: Observation | None, key: str) -> Array:
    return values if last is None else np.concatenate((values, last.values[key][None]))


def _distinct(frames: Array, before: Array | None) -> tuple[Array, Array]:
    """Frames that differ from the one before them, and for each row the number of its frame, from 0 on.

    -1 is the last frame of the rows that went before.
    """
    fresh = np.ones(len(frames), bool)
    previous = before
    for row, frame in enumerate(frames):
        fresh[row] = previous is None or not np.array_equal(frame, previous)
        previous = frame
    return (frames if fresh.all() else frames[fresh]), np.cumsum(fresh) - 1
