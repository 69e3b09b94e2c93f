"""Read episodes from a LeRobot dataset, v3.0 or v2.1: Dovetail's own as they were, others as demonstrations.

dataset = open_dataset("lerobot_data/pusht", robot=robot.spec, rename={"observation.image": "front"})
for episode in dataset.episodes():  # one at a time
    log.commit(episode)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.core.clock import NS_PER_S
from dovetail.core.disk import parse_json
from dovetail.core.errors import SpecMismatch, StoreError, UsageError
from dovetail.core.specs import RobotSpec, match
from dovetail.core.types import Array, Episode, Labels, Observation, Segment, Source
from dovetail.episodes._image_stream import ImageStream
from dovetail.episodes.ids import check_episode_id
from dovetail.episodes.lerobot import _mapping, _rows, _tables
from dovetail.episodes.lerobot._depth import depth_file, read_depth, stream_depth
from dovetail.episodes.lerobot._foreign import content_digest, demo_facts
from dovetail.episodes.lerobot._layout import EXPOSED, Layout
from dovetail.episodes.lerobot._mapping import Mapped, Piece, RateMismatch
from dovetail.episodes.lerobot._meta import Meta
from dovetail.episodes.lerobot._pictures import Pictures
from dovetail.episodes.lerobot._prompts import Prompts
from dovetail.episodes.lerobot._readers import KeptReader, RowReader

__all__ = ["Dataset", "RateMismatch", "open_dataset"]


def open_dataset(
    path: Path | str,
    *,
    robot: RobotSpec | None = None,
    task: str | None = None,
    rename: Mapping[str, str] | None = None,
    ignore_names: bool = False,
) -> Dataset:
    """Read the metadata of a dataset and match it with a robot. Frames are read later.

    `rename` maps features of foreign datasets to the robot's names: `{"observation.images.top": "front",
    "observation.state[0:7]": "joint_pos"}`; the target `action` is the action. Observations that the robot does not have
    are left out. `task` is the task name of foreign episodes; Dovetail's own must be of this task.
    """
    meta = Meta.read(Path(path))
    layout = meta.layout()
    if layout is None:
        try:
            mapped = _mapping.foreign(meta.info, robot=robot, rename=rename or {}, ignore_names=ignore_names)
        except RateMismatch:
            raise
        except SpecMismatch as error:  # perhaps it is of another task
            raise SpecMismatch(f"{error}{_described_tasks(meta, task)}") from error
    elif rename:
        raise UsageError(f"{path} was exported by Dovetail and needs no renaming. Remove --rename.")
    else:
        _check_task(meta, task)
        mapped = _mapping.ours(layout)
        if robot is not None:
            mapped = _mapping.only(mapped, robot, skipped=layout.skipped)
            match(robot, stored=mapped.robot)
            _mapping.check_rate(robot, dataset_hz=mapped.robot.control_hz)
    return Dataset(meta=meta, layout=layout, mapped=mapped, task=task)


def _check_task(meta: Meta, task: str | None) -> None:
    others = [] if task is None else sorted(meta.own_tasks() - {task})
    if others:
        named = ", ".join(other[:80] for other in others[:5])
        raise UsageError(
            f"the dataset is of task {named}, but the recipe's task is {task}. Use a recipe of the dataset's task, or "
            f"export only episodes of this one: dovetail episodes export RUN --task {task}"
        )


def _described_tasks(meta: Meta, task: str | None) -> str:
    described = list(meta.tasks().values())
    if task is None or not described:
        return ""
    return f" The dataset describes its task as '{str(described[0])[:80]}'; the recipe's task is {task}."


class Dataset:
    """An open dataset: its robot and its episodes by index."""

    def __init__(self, *, meta: Meta, layout: Layout | None, mapped: Mapped, task: str | None) -> None:
        self._meta, self._layout, self._mapped, self._task = meta, layout, mapped, task
        self._rows = meta.episodes()
        self._prompts = Prompts(meta, self._rows)
        self._pictures = Pictures(meta, is_ours=layout is not None)
        self._first_rows: dict[
            Path, int
        ] = {}  # dataset index of the first row in each data file of several episodes
        for row in () if meta.has_file_per_episode else self._rows:
            path = meta.data_file(row)
            first = row["dataset_from_index"]
            self._first_rows[path] = min(first, self._first_rows.get(path, first))
        self._data = RowReader()
        self._kept = KeptReader(meta)
        self._digest: str | None = None

    @property
    def robot(self) -> RobotSpec:
        return self._mapped.robot

    @property
    def is_ours(self) -> bool:
        return self._layout is not None

    def __len__(self) -> int:
        return len(self._rows)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes one at a time, so that only one is in memory."""
        for index in range(len(self)):
            yield self.episode(index)

    def episode_id(self, index: int) -> str:
        """Return the id of an episode without decoding its images."""
        with self._checked(index):
            kept = self._kept.row(index)
            return check_episode_id(str(kept["id"]) if kept else self._demo(index, self._table(index))["id"])

    def episode(self, index: int, *, images: bool = True) -> Episode:
        """Return an episode; with `images=False`, without the cameras, which `image_streams` decodes.

        A foreign episode is a demonstration with operator `lerobot`. Its steps are by a person unless `is_intervention` is
        false. Foreign datasets do not contain the observation after the last action, so the last frame is used again.
        """
        with self._checked(index):
            return self._episode(index, images=images)

    def image_streams(self, index: int) -> dict[str, ImageStream]:
        """The images of each camera of an episode, decoded one by one whenever they are read."""
        with self._checked(index):
            return self._image_streams(index)

    def _image_streams(self, index: int) -> dict[str, ImageStream]:
        row, table = self._rows[index], self._table(index)
        kept = self._kept.row(index)
        arrays = _tables.unpack(kept["arrays"]) if kept else {}

        def depth(piece: Piece) -> Iterator[Array]:
            path, numbers = (
                self._meta.root / depth_file(piece.feature, index),
                arrays.get(f"depth/{piece.feature}"),
            )
            return stream_depth(path, numbers, piece.spec, num_rows=len(table) + 1)

        def color(piece: Piece) -> Iterator[Array]:
            frame: Array | None = None
            for frame in self._pictures.stream(row, table, piece, num_frames=len(table) + (kept is not None)):
                yield frame
            if kept is None and frame is not None:  # foreign datasets lack the observation after the last action
                yield frame

        def checked(decode: Callable[[Piece], Iterator[Array]], piece: Piece) -> Iterator[Array]:
            with self._checked(index):
                yield from decode(piece)

        return {
            key: ImageStream(
                shape=(len(table) + 1, *piece.spec.shape),
                dtype=np.dtype(piece.spec.dtype),
                decode=partial(checked, depth if self.is_ours and piece.spec.is_depth else color, piece),
            )
            for key, piece in self._mapped.pictures.items()
        }

    def _episode(self, index: int, *, images: bool) -> Episode:
        row, table = self._rows[index], self._table(index)
        kept = self._kept.row(index)
        arrays = _tables.unpack(kept["arrays"]) if kept else {}
        columns = {**self._columns(table), **self._observations(table, whole=_under("steps/", arrays))}
        if kept:
            facts, last_time_ns = self._facts(kept)
            robot = _mapping.without(self._robot(kept), self._mapped)
        else:
            facts, robot = self._demo(index, table), self.robot
            last_time_ns = int(columns["time_ns"][-1]) + round(NS_PER_S / self._meta.info["fps"])
        last = _under("last/", arrays) or {key: columns[f"observation/{key}"][-1] for key in self._mapped.numbers}
        for key, piece in self._mapped.pictures.items() if images else ():
            if self.is_ours and piece.spec.is_depth:
                path = self._meta.root / depth_file(piece.feature, index)
                frames = read_depth(
                    path, arrays.get(f"depth/{piece.feature}"), piece.spec, num_rows=len(table) + 1
                )
            else:
                frames = self._pictures.frames(row, table, piece, with_last=kept is not None)
            columns[f"observation/{key}"], last[key] = frames[: len(table)], frames[-1]
        columns = {name: column for name, column in columns.items() if self._is_mapped(name)}
        last = {key: value for key, value in last.items() if self._is_mapped(f"observation/{key}")}
        segment = Segment(
            episode_id=facts["id"],
            first=0,
            final=True,
            columns=columns,
            last_observation=Observation(time_ns=last_time_ns, values=last),
            prompt_changes=self._prompts.changes(index, table),
        )
        return Episode(**facts, robot=robot, segments=(segment,))

    @contextlib.contextmanager
    def _checked(self, index: int) -> Iterator[None]:
        """A dataset may come from an untrusted source: tables of other shapes and types raise StoreError."""
        try:
            yield
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise StoreError(f"{self._meta.root}: episode {index} is not valid: {reason}") from error

    def _is_mapped(self, column: str) -> bool:
        kind, _, key = column.partition("/")
        return kind != "observation" or key in self._mapped.numbers or key in self._mapped.pictures

    def labels(self, index: int) -> Labels | None:
        """Return the labels with which Dovetail exported the episode, if any, as labels of `imported` and priority 0.

        A dataset states its labelers and priorities itself, so they must not outrank a person of this run.
        """
        with self._checked(index):
            return self._labels(index)

    def _labels(self, index: int) -> Labels | None:
        kept = self._kept.row(index)
        if kept is None or kept["labels"] is None:
            return None
        table = self._table(index)
        rewards, discounts = (self._numbers(table, f) for f in ("next.reward", "complementary_info.discount"))
        return _rows.imported_labels(
            kept["labels"], episode_id=self.episode_id(index), rewards=rewards, discounts=discounts
        )

    def _facts(self, kept: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        facts, last_time_ns = _rows.parse_facts(kept["episode"])
        if facts["id"] != kept["id"]:
            raise StoreError(
                f"{self._meta.root}: an episode has the ids {facts['id'][:80]!r} and {kept['id'][:80]!r}"
            )
        return facts, last_time_ns

    def _robot(self, kept: Mapping[str, Any]) -> RobotSpec:
        try:
            return RobotSpec.from_json(parse_json(kept["robot"]))
        except (ValueError, KeyError, TypeError, SpecMismatch) as error:
            raise StoreError(f"{self._meta.root}: the robot of an episode is not valid: {error}") from error

    def _table(self, index: int) -> pa.Table:
        row = self._rows[index]
        path = self._meta.data_file(row)
        first = row["dataset_from_index"] - self._first_rows.get(path, 0)
        table = self._data.read(path, first, row["length"])
        if len(table) != row["length"] or (_tables.column(table, "episode_index") != index).any():
            raise StoreError(f"{path} does not contain episode {index} at the rows that the dataset refers to")
        return table

    def _columns(self, table: pa.Table) -> dict[str, Array]:
        """Return all columns of the steps but the observations."""
        num_steps = len(table)
        present = set(table.column_names)
        action = self._mapped.action.cut(self._numbers(table, self._mapped.action.feature))
        frame_index = self._numbers(table, "frame_index")
        columns: dict[str, Array] = {
            "time_ns": np.round(frame_index * (NS_PER_S / self._meta.info["fps"])).astype(np.int64),
            "proposed": action,
            "executed": action,
            "source": np.full(num_steps, Source.HUMAN, np.uint8),
            "policy_version": np.zeros(num_steps, np.int64),
            "chunk_id": np.full(num_steps, -1),
            "chunk_index": np.zeros(num_steps, np.int64),
        }
        intervention = "complementary_info.is_intervention"
        if intervention in present:
            human = self._numbers(table, intervention).reshape(num_steps, -1)[:, 0].astype(bool)
            columns["source"] = np.where(human, Source.HUMAN, Source.POLICY).astype(np.uint8)
        if self._layout is not None:
            width = {"executed": action.shape, "proposed": action.shape}
            for name, (feature, _) in EXPOSED.items():
                columns[name] = self._numbers(table, feature).reshape(width.get(name, (num_steps,)))
        elif "next.reward" in present:
            columns["reward/lerobot"] = self._numbers(table, "next.reward").reshape(num_steps).astype(np.float32)
        return columns

    def _observations(self, table: pa.Table, *, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Return the observations without images, from the exact columns if stored, else from the features."""
        cut = {
            f"observation/{key}": piece.cut(self._numbers(table, piece.feature))
            for key, piece in self._mapped.numbers.items()
            if f"observation/{key}" not in whole
        }
        return {**cut, **whole}

    def _numbers(self, table: pa.Table, feature: str) -> Array:
        if feature not in table.column_names:
            raise StoreError(f"{self._meta.root}: the data files have no column '{feature}'")
        return _tables.column(table, feature)

    def _demo(self, index: int, table: pa.Table) -> dict[str, Any]:
        prompt = self._prompts.first(index, table)
        if self._digest is None:
            first = self._table(0)
            self._digest = self._content(0, first)
        return demo_facts(
            table,
            dataset=self._digest,
            index=index,
            prompt=prompt,
            task=self._task,
            content=self._content(index, table),
        )

    def _content(self, index: int, table: pa.Table) -> str:
        prompts = [self._prompts.first(index, table)]
        for change in self._prompts.changes(index, table):
            prompts += [str(change.step), change.prompt]
        return content_digest(table, prompts=prompts, features=self._meta.features)


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
