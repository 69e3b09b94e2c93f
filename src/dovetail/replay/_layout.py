"""Contents and sizes of the replay's files. The first episode determines them; layout.json stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.core.achieved import measures_achieved
from dovetail.core.action_parts import drives_in_parts
from dovetail.core.errors import UsageError, did_you_mean, shown
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.specs import ArraySpec, RobotSpec

__all__ = ["MAX_CAMERAS", "SCHEMA", "STEP_COLUMNS", "TABLES", "Layout", "low_dimensional"]

SCHEMA = 5
MAX_CAMERAS = 16
STEP_COLUMNS = ("action", "achieved", "human", "human_axes", "policy_version")
"""What a batch can have of each step of a chunk."""
_MAX_RECORDS = 1_000_000  # per table; beyond it the oldest episodes are evicted
_MAX_ROWS = 1 << 40  # in a file; more is damage

# Texts are cut to the size of their field. Comparisons cut both sides.
TABLES: Mapping[str, np.dtype[Any]] = {
    "episodes": np.dtype(
        [
            ("id", "S120"),
            ("robot", "S64"),
            ("task", "S64"),
            ("prompt", f"S{PROMPT_BYTES}"),
            ("labels", "S16"),  # digest of the stored rewards; empty until all rewards are stored
            ("last_row", "i8"),
            ("num_rows", "i8"),
            ("return", "f4"),  # sum of the stored rewards
            ("demo", "?"),
            ("success", "?"),
            ("finished", "?"),
            ("dropped", "?"),
        ]
    ),
    # contiguous rows of one append; space is freed in this order
    "segments": np.dtype([("episode", "i8"), ("row", "i8"), ("num_rows", "i8"), ("frames", "i8", (MAX_CAMERAS,))]),
    # contiguous steps that can be sampled and have the same source and policy version
    "spans": np.dtype(
        [("episode", "i8"), ("row", "i8"), ("born", "i8"), ("num_steps", "i8"), ("version", "i8"), ("human", "?")]
    ),
}


def low_dimensional(robot: RobotSpec) -> tuple[str, ...]:
    return tuple(key for key, spec in robot.observation.items() if len(spec.shape) < 3)


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a __dict__
class Layout:
    """Columns [num_rows, ...] with one row per step and one per last observation, and rings of frames.

    A camera's column holds frame numbers, so a frame that several ticks share is stored once.
    """

    robot: RobotSpec
    keys: tuple[str, ...]
    num_rows: int
    num_records: int

    @staticmethod
    def fit(robot: RobotSpec, keys: tuple[str, ...], *, capacity_bytes: int, capacity_rows: int | None) -> Layout:
        """Return the layout with as many rows as fit into `capacity_bytes` if every tick has new frames."""
        for key in keys:
            if key not in robot.observation:
                raise UsageError(
                    f"the replay stores observation '{key}', but robot '{robot.name}' does not have it."
                    + did_you_mean(key, robot.observation)
                )
        trial = Layout(robot=robot, keys=keys, num_rows=1, num_records=1)
        if len(trial.cameras) > MAX_CAMERAS:
            raise UsageError(f"the replay stores at most {MAX_CAMERAS} cameras, not {len(trial.cameras)}")
        num_rows = capacity_bytes // trial.row_bytes
        if capacity_rows is not None:
            num_rows = min(num_rows, capacity_rows)
        if num_rows < 2:
            raise UsageError(
                f"a step of robot '{robot.name}' takes {trial.row_bytes} bytes, which does not fit twice into the "
                "replay. Raise replay.capacity_gb."
            )
        return Layout(robot=robot, keys=keys, num_rows=num_rows, num_records=min(2 * num_rows + 8, _MAX_RECORDS))

    @cached_property
    def cameras(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if len(self.robot.observation[key].shape) >= 3)

    @cached_property
    def columns(self) -> Mapping[str, ArraySpec]:
        observations = {f"observation/{k}": self.robot.observation[k] for k in self.keys if k not in self.cameras}
        number = ArraySpec(shape=(), dtype="int64")
        in_parts = drives_in_parts(self.robot.parts)
        return {
            **observations,
            **{f"frame/{key}": number for key in self.cameras},
            "action": ArraySpec(shape=self.robot.action.shape, dtype="float32"),
            **({"achieved": ArraySpec(shape=self.robot.action.shape)} if measures_achieved(self.robot) else {}),
            "reward": ArraySpec(shape=()),
            "discount": ArraySpec(shape=()),
            "human": ArraySpec(shape=(), dtype="bool"),
            **({"human_axes": ArraySpec(shape=self.robot.action.shape, dtype="bool")} if in_parts else {}),
            "policy_version": number,
            "prompt": number,  # 0: that of the episode; else see `PromptFiles`
            "born": number,  # rows ever appended before this one; a moved row keeps its number
            "previous": number,  # rows of an episode are linked because several robots append in turns
            "following": number,
        }

    @cached_property
    def frames(self) -> Mapping[str, ArraySpec]:
        return {key: self.robot.observation[key] for key in self.cameras}

    @property
    def row_bytes(self) -> int:
        """Maximum size of a step. Cameras slower than the control rate take less."""
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
        for name in ("num_rows", "num_records"):
            if type(data[name]) is not int or not 1 <= data[name] <= _MAX_ROWS:
                raise ValueError(f"'{name}' is {shown(data[name])}, not a number of rows")
        return Layout(
            robot=RobotSpec.from_json(data["robot"]),
            keys=tuple(data["keys"]),
            num_rows=data["num_rows"],
            num_records=data["num_records"],
        )
