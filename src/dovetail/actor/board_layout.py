"""Names, dtypes and shapes of the arrays on a board, and their places in its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from dovetail.core.prompts import MAX_PROMPT_BYTES, MAX_PROMPT_CHANGES
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, TicksPerStep

__all__ = [
    "COUNTERS",
    "HEALTH",
    "MAX_METRICS",
    "MAX_REWARDS",
    "NAMES_BYTES",
    "NUM_MEASURED",
    "REPORT_BYTES",
    "STEP",
    "BoardLayout",
    "carve",
]

MAX_REWARDS, MAX_METRICS = 16, 48
NAMES_BYTES = 8192
REPORT_BYTES = 1024
_ALIGNMENT = 64
NUM_MEASURED = 256  # measurements that the guard can read: 0.1 s at 1 kHz, and more
HEALTH = ("ticks", "overruns", "late_ns", "worst_late_ns", "inference_ns")  # of the control loop
COUNTERS = ("seen", "stepped", "first", "heartbeat_ns", "ticked_ns", "stop", "num_names", "judged", *HEALTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLayout:
    """Names, dtypes and shapes of all arrays on a board."""

    num_rows: int
    observation: Mapping[str, tuple[str, tuple[int, ...]]]
    extras: Mapping[str, tuple[str, tuple[int, ...]]]
    chunk: tuple[int, int]  # H, A
    ticks_per_step: TicksPerStep = 1  # rows per step of the policy's history
    base_horizon: int = 0  # actions in a chunk of the policy's base; 0: it has none
    base_embedding: int = 0  # values of the base's inner features; 0: the policy reads none
    num_frames: Mapping[str, int] = field(default_factory=dict)  # of cameras that are slower than the robot

    @staticmethod
    def of(
        robot: RobotSpec,
        *,
        extras: Mapping[str, Array],
        horizon: int,
        num_rows: int,
        ticks_per_step: TicksPerStep = 1,
        num_frames: Mapping[str, int] = MappingProxyType({}),
        base_horizon: int = 0,
        base_embedding: int = 0,
    ) -> BoardLayout:
        """`num_frames`: frames of a camera that are kept, if it gives fewer than one per row."""
        return BoardLayout(
            num_rows=num_rows,
            observation={key: (spec.dtype, spec.shape) for key, spec in robot.observation.items()},
            extras={name: (value.dtype.str, value.shape) for name, value in extras.items()},
            chunk=(horizon, robot.action.shape[0]),
            ticks_per_step=ticks_per_step,
            base_horizon=base_horizon,
            base_embedding=base_embedding,
            num_frames={key: min(num_frames[key], num_rows) for key in robot.observation if key in num_frames},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "num_rows": self.num_rows,
            "observation": self.observation,
            "extras": self.extras,
            "chunk": self.chunk,
            "ticks_per_step": str(self.ticks_per_step),
            "num_frames": dict(self.num_frames),
            "base_horizon": self.base_horizon,
            "base_embedding": self.base_embedding,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BoardLayout:
        def arrays(part: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
            return {name: (dtype, tuple(shape)) for name, (dtype, shape) in part.items()}

        return BoardLayout(
            num_rows=data["num_rows"],
            observation=arrays(data["observation"]),
            extras=arrays(data["extras"]),
            chunk=(data["chunk"][0], data["chunk"][1]),
            ticks_per_step=Fraction(data.get("ticks_per_step", 1)),
            num_frames=data.get("num_frames", {}),
            base_horizon=data.get("base_horizon", 0),
            base_embedding=data.get("base_embedding", 0),
        )

    @property
    def frames(self) -> tuple[str, ...]:
        """Observations that are images. Each frame is stored once, in a ring per camera."""
        return tuple(key for key, (_, shape) in self.observation.items() if len(shape) >= 3)

    def num_kept(self, key: str) -> int:
        """Number of values of an observation in memory: one per row, or fewer frames of a slow camera."""
        return self.num_frames.get(key, self.num_rows)

    def arrays(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Yield (name, dtype, shape) of every array in memory order."""
        rows, (horizon, num_actions) = self.num_rows, self.chunk
        for name in COUNTERS:
            yield f"counter/{name}", "int64", (1,)
        yield "names", "uint8", (NAMES_BYTES,)
        yield "prompt", "uint8", (MAX_PROMPT_BYTES,)
        for name, dtype, shape in _REQUEST + (("prefix", "float32", (horizon, num_actions)),):
            yield f"request/{name}", dtype, shape
        for name, dtype, shape in _ANSWER + (("actions", "float32", (horizon, num_actions)),):
            yield f"answer/{name}", dtype, shape
        if self.base_horizon:
            yield "answer/proposal", "float32", (self.base_horizon, num_actions)
        if self.base_embedding:
            yield "answer/embedding", "float32", (self.base_embedding,)
        for name, dtype in STEP:
            yield f"row/{name}", dtype, (rows,)
        for name in ("proposed", "executed"):
            yield f"row/{name}", "float32", (rows, num_actions)
        yield "row/reward", "float32", (rows, MAX_REWARDS)
        yield "row/metric", "float32", (rows, MAX_METRICS)
        for name, (dtype, shape) in self.extras.items():
            yield f"extra/{name}", dtype, (rows, *shape)
        for key, (dtype, shape) in self.observation.items():
            yield f"observation/{key}", dtype, (self.num_kept(key), *shape)
            if key in self.frames:
                yield f"frame/{key}", "int64", (rows,)
        # last, so that a console of an older version finds the arrays before them
        yield "guard/command_times", "int64", (3,)
        yield "guard/control_ns", "int64", (1,)
        yield "guard/guard_ns", "int64", (1,)
        yield "guard/kill_ns", "int64", (1,)
        for name in ("request", "report"):
            yield f"guard/{name}_length", "int64", (1,)
            yield f"guard/{name}", "uint8", (REPORT_BYTES,)
        yield "guard/num_measured", "int64", (1,)
        yield "guard/measured_ns", "int64", (NUM_MEASURED,)
        for key in self.vectors:
            dtype, shape = self.observation[key]
            yield f"guard/measured/{key}", dtype, (NUM_MEASURED, *shape)
        yield "person/request_length", "int64", (1,)
        yield "person/request", "uint8", (REPORT_BYTES,)
        yield "prompts", "uint8", (1 + MAX_PROMPT_CHANGES, MAX_PROMPT_BYTES)  # of the current or last episode
        yield "row_prompt", "int64", (rows,)  # which of them belongs to a row

    @property
    def vectors(self) -> tuple[str, ...]:
        """Observations that are vectors."""
        return tuple(key for key, (_, shape) in self.observation.items() if len(shape) == 1)

    @property
    def num_bytes(self) -> int:
        return sum(_padded(_size(dtype, shape)) for _, dtype, shape in self.arrays())


_REQUEST: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("counter", "uint64", (1,)),
    ("checksum", "uint32", (1,)),
    ("row", "int64", ()),
    ("first", "int64", ()),
    ("delay", "int64", ()),
    ("horizon", "int64", ()),
    ("seed", "int64", ()),
    ("deterministic", "bool", ()),
    ("guided", "bool", ()),
)
_ANSWER: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("counter", "uint64", (1,)),
    ("checksum", "uint32", (1,)),
    ("id", "int64", ()),
    ("policy_version", "int64", ()),
    ("latency_ns", "int64", ()),
)
STEP = (
    ("time_ns", "int64"),
    ("source", "uint8"),
    ("policy_version", "int64"),
    ("chunk_id", "int64"),
    ("chunk_index", "int64"),
)


def carve(layout: BoardLayout, memory: memoryview | Array) -> dict[str, Array]:
    """The arrays of a layout, as views of a memory."""
    arrays: dict[str, Array] = {}
    offset = 0
    for name, dtype, shape in layout.arrays():
        count = math.prod(shape)
        arrays[name] = np.frombuffer(memory, dtype, count=count, offset=offset).reshape(shape)
        offset += _padded(_size(dtype, shape))
    return arrays


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * math.prod(shape)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
