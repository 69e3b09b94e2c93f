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
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail.actor.board_layout import MAX_METRICS, MAX_REWARDS, NAMES_BYTES, STEP, BoardLayout
from dovetail.actor.process_signals import ProcessSignals
from dovetail.actor.seen_frames import SeenFrames
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.image_sizes import is_fitted
from dovetail.core.policy_rate import nearest_ticks
from dovetail.core.prompts import MAX_PROMPT_CHANGES, decode_prompt, encode_prompt, prompt_width
from dovetail.core.proposals import EMBEDDING, PROPOSAL
from dovetail.core.seqlock import Seqlock
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import Array, Observation, Source, Verdict

__all__ = ["Board", "BoardLayout"]


class Board(ProcessSignals):
    """See the module. Row numbers only grow; their memory is reused."""

    def __init__(self, layout: BoardLayout, memory: memoryview | None = None) -> None:
        super().__init__(layout, memory)
        self._num_rows = layout.num_rows
        self.request, self.answer = self._mailbox("request"), self._mailbox("answer")
        self._row = {name: self._arrays[f"row/{name}"] for name in (*(n for n, _ in STEP), "proposed", "executed")}
        self._values = {key: self._arrays[f"observation/{key}"] for key in layout.observation}
        self._extras = {name: self._arrays[f"extra/{name}"] for name in layout.extras}
        self._frame_of = {key: self._arrays[f"frame/{key}"] for key in layout.frames}
        self._num_frames = dict.fromkeys(layout.frames, 0)
        self._num_kept = {key: layout.num_kept(key) for key in layout.observation}
        self._seen_frames = SeenFrames()
        self._captured_ns: dict[str, int] = {}
        self._reward_names: tuple[str, ...] = ()
        self._metric_names: tuple[str, ...] = ()
        self._num_prompt_changes = 0  # in the current episode
        self._newest_prompt = ""

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
    def first(self) -> int:
        """First row of the current or last episode."""
        return int(self._counters["first"][0])

    @property
    def prompt(self) -> str:
        """The newest prompt."""
        return decode_prompt(self._arrays["prompt"])

    # ---- control writes

    def begin(self, *, prompt: str = "") -> int:
        """Start a new episode at the next row. Its clock may start again at 0."""
        self._captured_ns.clear()
        self._num_prompt_changes = 0
        self._write_prompt(prompt)
        self._counters["worst_late_ns"][0] = 0
        self._counters["first"][0] = self.num_seen
        return self.num_seen

    def change_prompt(self, row: int, prompt: str) -> bool:
        """Use this prompt from a row on, before a chunk is requested for it. Returns whether it is another one."""
        if prompt == self._newest_prompt:
            return False
        if self._num_prompt_changes == MAX_PROMPT_CHANGES:
            raise UsageError(
                f"the task changed its prompt more than {MAX_PROMPT_CHANGES} times in one episode. Change it only where a "
                "stage of the task begins"
            )
        self._num_prompt_changes += 1
        self._write_prompt(prompt)
        self._arrays["row_prompt"][row % self._num_rows] = self._num_prompt_changes
        return True

    def frame_buffer(self, key: str) -> Array:
        """Memory for a camera's next frame. A driver that writes there saves a copy."""
        buffer: Array = self._values[key][self._num_frames[key] % self._num_kept[key]]
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

    def propose(self, row: int, proposal: Array, embedding: Array | None = None) -> None:
        """Store the base policy's proposal for a row, [K, A], and its embedding [E], if there is room (core.proposals)."""
        self._values[PROPOSAL][row % self._num_rows] = proposal.reshape(-1)
        if EMBEDDING in self._values:
            self._values[EMBEDDING][row % self._num_rows] = 0.0 if embedding is None else embedding

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
            view = ring[at % self._num_kept[key]]
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
            wanted = row - nearest_ticks(np.arange(num_wanted - 1, -1, -1), self.layout.ticks_per_step)
            values = self._seen(key, np.maximum(wanted, first), array, first=first)
            if key in spec.history:
                inputs[f"{key}/mask"] = (wanted >= first)[None]
                inputs[key] = values[None]
            else:
                inputs[key] = values
        if spec.prompted:
            number = self._arrays["row_prompt"][row % self._num_rows]
            prompt = self._arrays["prompts"][number][None]
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

    def prompt_numbers(self, first: int, end: int) -> Array:
        """The number of the prompt of each row; 0 is that of the episode's first row."""
        numbers: Array = self._arrays["row_prompt"][np.arange(first, end) % self._num_rows]
        return numbers

    def prompt_text(self, number: int) -> str:
        return decode_prompt(self._arrays["prompts"][number])

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
        at = [newest % self._num_rows, row % self._num_rows]
        # observe_again uses one more frame, so a frame may be gone before its row
        gone = any(
            last + 1 >= first + self._num_kept[key]
            for key, (last, first) in ((key, of[at]) for key, of in self._frame_of.items())
        )
        return gone or self.num_seen >= row + self._num_rows

    # ---- private

    def _write(self, row: int, observation: Observation) -> None:
        at = row % self._num_rows
        self._row["time_ns"][at] = observation.time_ns
        self._arrays["row_prompt"][at] = self._num_prompt_changes
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

    def _write_prompt(self, prompt: str) -> None:
        encoded = encode_prompt(prompt)
        for text in (self._arrays["prompts"][self._num_prompt_changes], self._arrays["prompt"]):
            text[: len(encoded)], text[len(encoded) :] = encoded, 0
        self._newest_prompt = prompt

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
            key, numbers, spec, first=first, frame=lambda number: ring[number % self._num_kept[key]]
        )

    def _gather(self, key: str, rows: Array) -> Array:
        at = rows % self._num_rows
        if key in self._frame_of:
            at = self._frame_of[key][at] % self._num_kept[key]
        found: Array = self._values[key][at]
        return found

    def _set_names(self, rewards: tuple[str, ...], metrics: tuple[str, ...]) -> None:
        if (rewards, metrics) == (self._reward_names, self._metric_names):
            return
        names = json.dumps((rewards, metrics)).encode()
        if len(rewards) > MAX_REWARDS or len(metrics) > MAX_METRICS or len(names) > NAMES_BYTES:
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
