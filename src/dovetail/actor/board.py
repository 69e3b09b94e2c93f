"""Memory that the processes of a robot share: a ring of ticks, rings of camera frames, a request and an answer.

    board = Board(BoardLayout.of(robot.spec, extras=..., horizon=H, num_rows=200))
    row = board.observe(observation)         # control: one row per tick
    board.request.write({...})               # control: ask for a chunk from that row
    inputs = board.inputs(spec, row=row, first=first_row)       # inference: the inputs of the policy
    board.answer.write({...})                # inference: a chunk
    board.act(row, ...); board.judge(row, verdict)               # control: the step is complete
    columns = board.columns(first, end)      # recorder: complete steps

    board.command_times                      # control: when it last commanded and stopped the arm
    board.guard_report                       # guard: what it did, and why

Each part has one writing process. A counter changes after the data that it counts, so a reader never sees half a row. The
memory is private or shared between processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.actor.seen_frames import SeenFrames
from dovetail.core.errors import SpecMismatch
from dovetail.core.image_sizes import is_fitted
from dovetail.core.prompts import MAX_PROMPT_BYTES, decode_prompt, encode_prompt, prompt_width
from dovetail.core.seqlock import Seqlock
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import Array, Observation, Source, Verdict

__all__ = ["Board", "BoardLayout"]

MAX_REWARDS, MAX_METRICS = 16, 48
_NAMES_BYTES = 8192
_REPORT_BYTES = 1024
_ALIGNMENT = 64
_NUM_MEASURED = 256  # measurements that the guard can read: 0.1 s at 1 kHz, and more
_HEALTH = ("ticks", "overruns", "late_ns", "worst_late_ns", "inference_ns")  # of the control loop
_COUNTERS = ("seen", "stepped", "first", "heartbeat_ns", "ticked_ns", "stop", "num_names", "judged", *_HEALTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLayout:
    """Names, dtypes and shapes of all arrays on a board."""

    num_rows: int
    observation: Mapping[str, tuple[str, tuple[int, ...]]]
    extras: Mapping[str, tuple[str, tuple[int, ...]]]
    chunk: tuple[int, int]  # H, A
    ticks_per_step: int = 1  # rows per step of the policy's history

    @staticmethod
    def of(
        robot: RobotSpec, *, extras: Mapping[str, Array], horizon: int, num_rows: int, ticks_per_step: int = 1
    ) -> BoardLayout:
        return BoardLayout(
            num_rows=num_rows,
            observation={key: (spec.dtype, spec.shape) for key, spec in robot.observation.items()},
            extras={name: (value.dtype.str, value.shape) for name, value in extras.items()},
            chunk=(horizon, robot.action.shape[0]),
            ticks_per_step=ticks_per_step,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "num_rows": self.num_rows,
            "observation": self.observation,
            "extras": self.extras,
            "chunk": self.chunk,
            "ticks_per_step": self.ticks_per_step,
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
            ticks_per_step=data.get("ticks_per_step", 1),
        )

    @property
    def frames(self) -> tuple[str, ...]:
        """Observations that are images. Each frame is stored once, in a ring per camera."""
        return tuple(key for key, (_, shape) in self.observation.items() if len(shape) >= 3)

    def arrays(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Yield (name, dtype, shape) of every array in memory order."""
        rows, (horizon, num_actions) = self.num_rows, self.chunk
        for name in _COUNTERS:
            yield f"counter/{name}", "int64", (1,)
        yield "names", "uint8", (_NAMES_BYTES,)
        yield "prompt", "uint8", (MAX_PROMPT_BYTES,)
        for name, dtype, shape in _REQUEST + (("prefix", "float32", (horizon, num_actions)),):
            yield f"request/{name}", dtype, shape
        for name, dtype, shape in _ANSWER + (("actions", "float32", (horizon, num_actions)),):
            yield f"answer/{name}", dtype, shape
        for name, dtype in _STEP:
            yield f"row/{name}", dtype, (rows,)
        for name in ("proposed", "executed"):
            yield f"row/{name}", "float32", (rows, num_actions)
        yield "row/reward", "float32", (rows, MAX_REWARDS)
        yield "row/metric", "float32", (rows, MAX_METRICS)
        for name, (dtype, shape) in self.extras.items():
            yield f"extra/{name}", dtype, (rows, *shape)
        for key, (dtype, shape) in self.observation.items():
            yield f"observation/{key}", dtype, (rows, *shape)
            if key in self.frames:
                yield f"frame/{key}", "int64", (rows,)
        # last, so that a console of an older version finds the arrays before them
        yield "guard/command_times", "int64", (3,)
        yield "guard/control_ns", "int64", (1,)
        yield "guard/guard_ns", "int64", (1,)
        yield "guard/kill_ns", "int64", (1,)
        for name in ("request", "report"):
            yield f"guard/{name}_length", "int64", (1,)
            yield f"guard/{name}", "uint8", (_REPORT_BYTES,)
        yield "guard/num_measured", "int64", (1,)
        yield "guard/measured_ns", "int64", (_NUM_MEASURED,)
        for key in self.vectors:
            dtype, shape = self.observation[key]
            yield f"guard/measured/{key}", dtype, (_NUM_MEASURED, *shape)
        yield "person/request_length", "int64", (1,)
        yield "person/request", "uint8", (_REPORT_BYTES,)

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
_STEP = (
    ("time_ns", "int64"),
    ("source", "uint8"),
    ("policy_version", "int64"),
    ("chunk_id", "int64"),
    ("chunk_index", "int64"),
)


class Board:
    """See the module. Row numbers only grow; their memory is reused."""

    def __init__(self, layout: BoardLayout, memory: memoryview | None = None) -> None:
        self.layout = layout
        self._arrays = _carve(layout, np.zeros(layout.num_bytes, np.uint8) if memory is None else memory)
        self._num_rows = layout.num_rows
        self._counters = {name: self._arrays[f"counter/{name}"] for name in _COUNTERS}
        self.request, self.answer = self._mailbox("request"), self._mailbox("answer")
        self._row = {
            name: self._arrays[f"row/{name}"] for name in (*(n for n, _ in _STEP), "proposed", "executed")
        }
        self._values = {key: self._arrays[f"observation/{key}"] for key in layout.observation}
        self._extras = {name: self._arrays[f"extra/{name}"] for name in layout.extras}
        self._frame_of = {key: self._arrays[f"frame/{key}"] for key in layout.frames}
        self._num_frames = dict.fromkeys(layout.frames, 0)
        self._seen_frames = SeenFrames()
        self._captured_ns: dict[str, int] = {}
        self._reward_names: tuple[str, ...] = ()
        self._metric_names: tuple[str, ...] = ()

    # ---- counters

    @property
    def num_seen(self) -> int:
        """Rows observed so far."""
        return int(self._counters["seen"][0])

    @property
    def num_stepped(self) -> int:
        """Rows before this one are complete steps."""
        return int(self._counters["stepped"][0])

    @property
    def heartbeat_ns(self) -> int:
        return int(self._counters["heartbeat_ns"][0])

    def beat(self, now_ns: int) -> None:
        self._counters["heartbeat_ns"][0] = now_ns

    @property
    def ticked_ns(self) -> int:
        """Time of the last control tick, by the machine's monotonic clock."""
        return int(self._counters["ticked_ns"][0])

    def ticked(self, now_ns: int, *, late_ns: int = 0, overrun: bool = False, inference_ns: int = 0) -> None:
        """Record the end of a tick. `inference_ns` is the time of the last inference."""
        counters = self._counters
        counters["ticked_ns"][0] = now_ns
        counters["ticks"][0] += 1
        counters["overruns"][0] += overrun
        counters["late_ns"][0] = late_ns
        if late_ns > counters["worst_late_ns"][0]:
            counters["worst_late_ns"][0] = late_ns
        counters["inference_ns"][0] = inference_ns

    @property
    def health(self) -> dict[str, int]:
        """Ticks and overruns so far, lateness of the last tick, and the worst lateness in this episode."""
        return {name: int(self._counters[name][0]) for name in _HEALTH}

    @property
    def first(self) -> int:
        """First row of the current or last episode."""
        return int(self._counters["first"][0])

    @property
    def prompt(self) -> str:
        return decode_prompt(self._arrays["prompt"])

    @property
    def stopping(self) -> bool:
        return bool(self._counters["stop"][0])

    def ask_to_stop(self, *, stop: bool = True) -> None:
        """Ask the control process to stop, or withdraw the request."""
        self._counters["stop"][0] = stop

    @property
    def success_check(self) -> tuple[int, bool]:
        """The last row that the success detector checked, or -1, and whether it showed success."""
        packed = int(self._counters["judged"][0])
        return packed // 2 - 1, bool(packed % 2)

    def post_success_check(self, row: int, done: bool) -> None:
        """Store both in one integer, so that a reader gets them together."""
        self._counters["judged"][0] = 2 * (row + 1) + done

    # ---- control and guard

    @property
    def command_times(self) -> npt.NDArray[np.int64]:
        """See `SafeRobot.command_times`: the last command and the last stop. The guard writes the time of its stop, too."""
        return self._arrays["guard/command_times"]

    def measure(self, observation: Observation) -> None:
        """Show the guard an observation. Unlike the rows, these also come from resets and homing."""
        number = self.num_measured
        at = number % _NUM_MEASURED
        self._arrays["guard/measured_ns"][at] = observation.time_ns
        for key in self.layout.vectors:
            self._arrays[f"guard/measured/{key}"][at] = observation.values[key]
        self._arrays["guard/num_measured"][0] = number + 1

    @property
    def num_measured(self) -> int:
        return int(self._arrays["guard/num_measured"][0])

    def measured(self, key: str, number: int) -> Array:
        """A vector of one of the newest measurements."""
        found: Array = self._arrays[f"guard/measured/{key}"][number % _NUM_MEASURED].copy()
        return found

    def measured_ns(self, number: int) -> npt.NDArray[np.int64]:
        """Times of the measurements up to this one, oldest first. Half of the ring, because the other half may change."""
        numbers = np.arange(max(0, number + 1 - _NUM_MEASURED // 2), number + 1)
        times: npt.NDArray[np.int64] = self._arrays["guard/measured_ns"][numbers % _NUM_MEASURED]
        return times

    @property
    def control_ns(self) -> int:
        """Heartbeat of the control loop; 0 while none is due, for example during a task's reset."""
        return int(self._arrays["guard/control_ns"][0])

    def beat_control(self, now_ns: int) -> None:
        self._arrays["guard/control_ns"][0] = now_ns

    @property
    def guard_ns(self) -> int:
        """Heartbeat of the guard."""
        return int(self._arrays["guard/guard_ns"][0])

    def beat_guard(self, now_ns: int) -> None:
        self._arrays["guard/guard_ns"][0] = now_ns

    @property
    def guard_kill_ns(self) -> int:
        """When the guard began to end the control process; 0: never. `guard_report` follows."""
        return int(self._arrays["guard/kill_ns"][0])

    def post_guard_kill(self, now_ns: int) -> None:
        self._arrays["guard/kill_ns"][0] = now_ns

    @property
    def guard_request(self) -> str:
        """Why the guard asks the control loop to stop the arm; empty if it does not."""
        return self._text("guard/request")

    def post_guard_request(self, reason: str) -> None:
        self._write_text("guard/request", reason)

    @property
    def guard_report(self) -> str:
        """What the guard did because the control process did not; empty: nothing."""
        return self._text("guard/report")

    def post_guard_report(self, text: str) -> None:
        self._write_text("guard/report", text)

    @property
    def person_request(self) -> str:
        """What the control loop asks a person to do, such as `place the part`; empty: nothing."""
        return self._text("person/request")

    def ask_person(self, text: str) -> None:
        """Show a request to the person at the console or terminal. Empty: it is done."""
        self._write_text("person/request", text)

    def _text(self, name: str) -> str:
        length = int(self._arrays[f"{name}_length"][0])
        return self._arrays[name][:length].tobytes().decode(errors="ignore") if length else ""

    def _write_text(self, name: str, text: str) -> None:
        data = text.encode()[:_REPORT_BYTES]
        self._arrays[f"{name}_length"][0] = 0
        self._arrays[name][: len(data)] = np.frombuffer(data, np.uint8)
        self._arrays[f"{name}_length"][0] = len(data)  # last: a reader sees the whole text

    # ---- control writes

    def begin(self, *, prompt: str = "") -> int:
        """Start a new episode at the next row. Its clock may start again at 0."""
        self._captured_ns.clear()
        encoded = encode_prompt(prompt)
        self._arrays["prompt"][: len(encoded)], self._arrays["prompt"][len(encoded) :] = encoded, 0
        self._counters["worst_late_ns"][0] = 0
        self._counters["first"][0] = self.num_seen
        return self.num_seen

    def frame_buffer(self, key: str) -> Array:
        """Memory for a camera's next frame. A driver that writes there saves a copy."""
        buffer: Array = self._values[key][self._num_frames[key] % self._num_rows]
        return buffer

    def observe(self, observation: Observation) -> int:
        """Store an observation and return its row."""
        row = self.num_seen
        self._write(row, observation)
        self._counters["seen"][0] = row + 1
        return row

    def observe_again(self, row: int, observation: Observation) -> None:
        """Replace the observation of a row before an action follows it."""
        self._write(row, observation)

    def guarded(self, observation: Observation, row: int) -> Observation:
        """The observation with read-only views of the frames on the board."""
        if not self._frame_of:
            return observation
        frames = {key: value for key, value in self.observation(row).values.items() if key in self._frame_of}
        return replace(observation, values={**observation.values, **frames})

    def observation(self, row: int) -> Observation:
        """Read-only views of a row."""
        values: dict[str, Array] = {}
        for key, ring in self._values.items():
            at = self._frame_of[key][row % self._num_rows] if key in self._frame_of else row
            view = ring[at % self._num_rows]
            view.flags.writeable = False
            values[key] = view
        return Observation(time_ns=int(self._row["time_ns"][row % self._num_rows]), values=values)

    def act(
        self,
        row: int,
        *,
        proposed: Array,
        executed: Array,
        source: Source,
        policy_version: int,
        chunk_id: int,
        chunk_index: int,
        extras: Mapping[str, Array],
    ) -> None:
        at, columns = row % self._num_rows, self._row
        columns["proposed"][at] = proposed
        columns["executed"][at] = executed
        columns["source"][at] = source
        columns["policy_version"][at] = policy_version
        columns["chunk_id"][at] = chunk_id
        columns["chunk_index"][at] = chunk_index
        for name, column in self._extras.items():
            column[at] = extras[name]

    def judge(self, row: int, verdict: Verdict, *, first: bool) -> None:
        """Store the task's verdict, which completes the step. The first one of an episode sets the names."""
        if first:
            self._set_names(tuple(verdict.rewards), tuple(verdict.metrics))
        at = row % self._num_rows
        for kind, names, values in (
            ("row/reward", self._reward_names, verdict.rewards),
            ("row/metric", self._metric_names, verdict.metrics),
        ):
            if values.keys() != set(names):
                raise SpecMismatch(f"a task's verdict names {', '.join(values)}, but at first {', '.join(names)}")
            for index, name in enumerate(names):
                self._arrays[kind][at, index] = values[name]
        self._counters["stepped"][0] = row + 1

    # ---- other processes read

    def inputs(self, spec: PolicySpec, *, row: int, first: int) -> dict[str, Array]:
        """Inputs of a policy at a row, as a batch of one. History starts at row `first`, left-padded and masked. It has one
        entry per step of the policy. Images have the sizes that the policy looks at."""
        inputs: dict[str, Array] = {}
        for key, array in spec.observation.items():
            num_wanted = spec.history.get(key, 1)
            wanted = row - self.layout.ticks_per_step * np.arange(num_wanted - 1, -1, -1)
            values = self._seen(key, np.maximum(wanted, first), array, first=first)
            if key in spec.history:
                inputs[f"{key}/mask"] = (wanted >= first)[None]
                inputs[key] = values[None]
            else:
                inputs[key] = values
        if spec.prompted:
            prompt = self._arrays["prompt"][None]
            inputs["prompt"] = prompt[:, : prompt_width(prompt)].copy()
        return inputs

    def columns(self, first: int, end: int) -> dict[str, Array]:
        """Copy complete steps as columns of a segment."""
        rows = np.arange(first, end)
        at = rows % self._num_rows
        columns = {name: column[at] for name, column in self._row.items()}
        rewards, metrics = self._names()
        for kind, names in (("reward", rewards), ("metric", metrics)):
            columns |= {f"{kind}/{name}": self._arrays[f"row/{kind}"][at, i] for i, name in enumerate(names)}
        columns |= {f"extra/{name}": column[at] for name, column in self._extras.items()}
        columns |= {f"observation/{key}": self._gather(key, rows) for key in self._values}
        return columns

    def action(self, row: int) -> tuple[Source, int, Array]:
        """Source, policy version and executed action of a complete step."""
        at, columns = row % self._num_rows, self._row
        return (
            Source(int(columns["source"][at])),
            int(columns["policy_version"][at]),
            columns["executed"][at].copy(),
        )

    def extras(self, row: int) -> dict[str, Array]:
        """Copy the extra columns of a row."""
        return {name: column[row % self._num_rows].copy() for name, column in self._extras.items()}

    def recent(self, name: str, rows: Array) -> Array | None:
        """`proposed`, or an observation, of some rows. None for an unknown name."""
        if name in self._row:
            found: Array = self._row[name][rows % self._num_rows]
            return found
        return self._gather(name, rows) if name in self._values else None

    def copy(self, row: int) -> Observation:
        """Copy the observation of a row."""
        seen = self.observation(row)
        return Observation(time_ns=seen.time_ns, values={key: value.copy() for key, value in seen.values.items()})

    def is_overwritten(self, row: int) -> bool:
        """Whether a row may have been overwritten while it was read."""
        newest = self.num_seen - 1
        frames = (of[[newest % self._num_rows, row % self._num_rows]] for of in self._frame_of.values())
        # observe_again uses one more frame, so a frame may be gone before its row
        gone = any(last + 1 >= first + self._num_rows for last, first in frames)
        return gone or self.num_seen >= row + self._num_rows

    # ---- private

    def _write(self, row: int, observation: Observation) -> None:
        at = row % self._num_rows
        self._row["time_ns"][at] = observation.time_ns
        for key, ring in self._values.items():
            value = observation.values[key]
            if key not in self._frame_of:
                ring[at] = value
                continue
            captured_ns = observation.captured_ns.get(key, observation.time_ns)
            if captured_ns != self._captured_ns.get(key):
                buffer = self.frame_buffer(key)
                if not np.may_share_memory(buffer, value):  # the driver may have written it there
                    buffer[...] = value
                self._captured_ns[key] = captured_ns
                self._num_frames[key] += 1
            self._frame_of[key][at] = self._num_frames[key] - 1

    def _seen(self, key: str, rows: Array, spec: ArraySpec, *, first: int) -> Array:
        """Observations of some rows; images in the size of a policy's spec, if they can be scaled down to it."""
        ring = self._values[key]
        large = ring.shape[1:]
        if key not in self._frame_of or spec.shape == large or ring.dtype != spec.dtype:
            return self._gather(key, rows)
        if not (spec.is_picture and is_fitted(spec.shape, large)):
            return self._gather(key, rows)  # the policy's own check refuses it
        numbers = self._frame_of[key][rows % self._num_rows]
        return self._seen_frames.of(
            key, numbers, spec.shape, first=first, frame=lambda number: ring[number % self._num_rows]
        )

    def _gather(self, key: str, rows: Array) -> Array:
        at = rows % self._num_rows
        if key in self._frame_of:
            at = self._frame_of[key][at] % self._num_rows
        found: Array = self._values[key][at]
        return found

    def _set_names(self, rewards: tuple[str, ...], metrics: tuple[str, ...]) -> None:
        if (rewards, metrics) == (self._reward_names, self._metric_names):
            return
        names = json.dumps((rewards, metrics)).encode()
        if len(rewards) > MAX_REWARDS or len(metrics) > MAX_METRICS or len(names) > _NAMES_BYTES:
            raise SpecMismatch(
                f"a task's verdict may have {MAX_REWARDS} rewards and {MAX_METRICS} metrics, "
                f"this one has {len(rewards)} and {len(metrics)}"
            )
        self._reward_names, self._metric_names = rewards, metrics
        self._arrays["names"][: len(names)] = np.frombuffer(names, np.uint8)
        self._counters["num_names"][0] = len(names)

    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        text = self._arrays["names"][: int(self._counters["num_names"][0])].tobytes()
        rewards, metrics = json.loads(text) if text else ((), ())
        return tuple(rewards), tuple(metrics)

    def _mailbox(self, name: str) -> Seqlock:
        fields = {n.removeprefix(f"{name}/"): a for n, a in self._arrays.items() if n.startswith(f"{name}/")}
        return Seqlock(fields.pop("counter"), fields.pop("checksum"), fields)


def _carve(layout: BoardLayout, memory: memoryview | Array) -> dict[str, Array]:
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
