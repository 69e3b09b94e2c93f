"""What the files of a replay hold, and how large they are: decided by the first episode, kept in layout.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.core.achieved import tells_achieved
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.specs import ArraySpec, RobotSpec

__all__ = ["MAX_CAMERAS", "SCHEMA", "TABLES", "Layout", "low_dimensional"]

SCHEMA = 3
MAX_CAMERAS = 16
_MAX_RECORDS = 1_000_000  # of a table: more episodes, segments or spans than that make the oldest leave

# A name is cut to its field; both sides of every comparison are cut alike.
TABLES: Mapping[str, np.dtype[Any]] = {
    "episodes": np.dtype(
        [
            ("id", "S120"),
            ("robot", "S64"),
            ("task", "S64"),
            ("prompt", f"S{PROMPT_BYTES}"),
            ("labels", "S16"),  # digest of the rewards in place; empty while there are none, or half of them
            ("last_row", "i8"),
            ("num_rows", "i8"),
            ("return", "f4"),  # what the rewards in place add up to
            ("demo", "?"),
            ("success", "?"),
            ("finished", "?"),
            ("dropped", "?"),
        ]
    ),
    # where rows were appended: space is given back in this order
    "segments": np.dtype([("episode", "i8"), ("row", "i8"), ("num_rows", "i8"), ("frames", "i8", (MAX_CAMERAS,))]),
    # steps that can be drawn, in runs that no view tells apart
    "spans": np.dtype(
        [("episode", "i8"), ("row", "i8"), ("born", "i8"), ("num_steps", "i8"), ("version", "i8"), ("human", "?")]
    ),
}


def low_dimensional(robot: RobotSpec) -> tuple[str, ...]:
    return tuple(key for key, spec in robot.observation.items() if len(spec.shape) < 3)


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from its fields is worked out once, not per batch
class Layout:
    """Columns [num_rows, ...], one row a step and one more for each true last observation; and rings of frames.

    A camera's column holds numbers of frames, so that a frame seen at many ticks is there once.
    """

    robot: RobotSpec
    keys: tuple[str, ...]
    num_rows: int
    num_records: int

    @staticmethod
    def fit(robot: RobotSpec, keys: tuple[str, ...], *, capacity_bytes: int, capacity_rows: int | None) -> Layout:
        """As many rows as the bytes allow if every tick sees new frames."""
        for key in keys:
            if key not in robot.observation:
                raise UsageError(
                    f"the replay is to keep observation '{key}', but robot '{robot.name}' gives no such thing."
                    + did_you_mean(key, robot.observation)
                )
        trial = Layout(robot=robot, keys=keys, num_rows=1, num_records=1)
        if len(trial.cameras) > MAX_CAMERAS:
            raise UsageError(f"the replay takes at most {MAX_CAMERAS} cameras, not {len(trial.cameras)}")
        num_rows = capacity_bytes // trial.row_bytes
        if capacity_rows is not None:
            num_rows = min(num_rows, capacity_rows)
        if num_rows < 2:
            raise UsageError(
                f"a step of robot '{robot.name}' takes {trial.row_bytes} bytes, more than the whole replay: "
                "raise replay.capacity_gb"
            )
        return Layout(robot=robot, keys=keys, num_rows=num_rows, num_records=min(2 * num_rows + 8, _MAX_RECORDS))

    @cached_property
    def cameras(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if len(self.robot.observation[key].shape) >= 3)

    @cached_property
    def columns(self) -> Mapping[str, ArraySpec]:
        observations = {f"observation/{k}": self.robot.observation[k] for k in self.keys if k not in self.cameras}
        number = ArraySpec(shape=(), dtype="int64")
        return {
            **observations,
            **{f"frame/{key}": number for key in self.cameras},
            "action": ArraySpec(shape=self.robot.action.shape, dtype="float32"),
            **({"achieved": ArraySpec(shape=self.robot.action.shape)} if tells_achieved(self.robot) else {}),
            "reward": ArraySpec(shape=()),
            "discount": ArraySpec(shape=()),
            "human": ArraySpec(shape=(), dtype="bool"),
            "policy_version": number,
            "born": number,  # how many rows there ever were before it: what is moved gets no younger
            "previous": number,  # rows of one episode are linked: two robots may append by turns
            "following": number,
        }

    @cached_property
    def frames(self) -> Mapping[str, ArraySpec]:
        return {key: self.robot.observation[key] for key in self.cameras}

    @property
    def row_bytes(self) -> int:
        """What a step takes at most: cameras that are slower than the ticks take less."""
        arrays = [*self.columns.values(), *self.frames.values()]
        return sum(int(np.prod(a.shape, dtype=np.int64)) * np.dtype(a.dtype).itemsize for a in arrays)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "robot": self.robot.to_json(),
            "keys": list(self.keys),
            "num_rows": self.num_rows,
            "num_records": self.num_records,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Layout:
        return Layout(
            robot=RobotSpec.from_json(data["robot"]),
            keys=tuple(data["keys"]),
            num_rows=data["num_rows"],
            num_records=data["num_records"],
        )
