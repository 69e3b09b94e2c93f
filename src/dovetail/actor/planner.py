"""Requests chunks in time, checks them, and gives the action of each tick."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dovetail.actor.inference import NO_ANSWER, Answer, Inference, Request
from dovetail.actor.modes import Mode, Plan
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock
from dovetail.core.errors import RobotFault, UsageError
from dovetail.core.policy_rate import Resampling, begun_steps, covering_ticks, to_steps, to_ticks
from dovetail.core.proposals import proposal_at
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array, TicksPerStep

__all__ = ["Delays", "PlannedAction", "Planner"]


class Delays:
    """Predicts how many ticks the next inference takes: the longest recent delay."""

    def __init__(self, window: int = 10) -> None:
        self._recent: deque[int] = deque(maxlen=window)

    def measured(self, num_ticks: int) -> None:
        self._recent.append(num_ticks)

    def estimate(self, *, most: int) -> int:
        return min(max(self._recent, default=0), max(most, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    action: Array
    policy_version: int
    chunk_id: int
    chunk_index: int


class Planner:
    """Call `action_for(tick)` each tick that the policy acts, and `interrupt()` when the plan becomes invalid.

    Plans count ticks; requests and answers count steps of the policy, which last `ticks_per_step` ticks. In simulated time,
    inference takes `simulated_delay` ticks. None means real time: inference takes as long as it takes.

    A policy with a base (`spec.base`) receives the base's known proposal through `propose(row, actions, embedding)`, or NaN,
    and then asks its base. Call `update_proposal(tick)` each tick that something else acts, so that the base keeps
    proposing.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        inference: Inference,
        spec: PolicySpec,
        clock: Clock,
        telemetry: Telemetry,
        execution_horizon: int,
        simulated_delay: int | None,
        ticks_per_step: TicksPerStep = 1,
        resample: Resampling = "chunk",
        delays: Delays | None = None,
        inference_timeout_s: float = 2.0,
        max_bad_chunks: int = 5,
        propose: Callable[[int, Array, Array | None], None] | None = None,
    ) -> None:
        mode.check(spec)
        if spec.base is not None and ticks_per_step > 1:
            raise UsageError(
                f"policy '{spec.name}' corrects its base at every tick of the robot. Leave out actor.policy_hz"
            )
        self._propose = propose
        self._mode, self._inference, self._spec, self._clock, self._telemetry = (
            mode,
            inference,
            spec,
            clock,
            telemetry,
        )
        self._ticks, self._resample = ticks_per_step, resample
        self._horizon = covering_ticks(min(execution_horizon, spec.horizon), ticks_per_step)
        self._simulated_delay = simulated_delay
        self._stall_ns = round(inference_timeout_s * NS_PER_S)
        self._max_bad_chunks = max_bad_chunks
        low, high = spec.action.bounds
        self._scale = np.where(np.isfinite(high - low), np.maximum(high - low, 1e-9), 1.0)
        self._delays = delays or Delays()  # a property of the machine: kept over episodes
        self._rng = np.random.default_rng(0)
        self.reset(first=0, rng=self._rng, deterministic=False)

    def reset(self, *, first: int, rng: np.random.Generator, deterministic: bool, base_steps: int = 0) -> None:
        """Start a new episode at row `first`. The base acts alone in its first `base_steps`."""
        self._alone_until = first + base_steps
        self._rng, self._deterministic = rng, deterministic
        self._chunk_id = -1
        self._num_bad = 0
        self._base: tuple[Array, int] | None = None  # the base's newest chunk [Hb, A], and the tick it starts at
        self.embedding: Array | None = None  # the base's inner features that belong to it
        self._prompt_row = first  # the current prompt began at this row
        self.forget_before(first)

    def forget_before(self, row: int) -> None:
        """Start the history at this row, because ticks before it were not recorded."""
        self._first = row
        self.interrupt()

    def interrupt(self) -> None:
        """Discard the plan and the pending request."""
        self._plan: Plan | None = None
        self._request: Request | None = None
        self._is_watching = False  # the pending request is for the base's proposal only
        self._requested_ns = 0
        self._before: Array | None = None  # executed in the tick before the request
        self._executed: Array | None = None  # executed in the last tick

    def replan(self, row: int) -> None:
        """The prompt changes at this row: discard the pending request and request a chunk for the new prompt.

        A mode that computes while the arm acts executes the old chunk until the new one is ready, and never longer than
        without the change. Otherwise the arm holds meanwhile.
        """
        self._prompt_row = row
        self._request, self._is_watching = None, False
        if not self._mode.overlaps:
            self._plan = None

    def action_for(
        self, tick: int, *, horizon: int | None = None, before: Array | None = None
    ) -> PlannedAction | None:
        """The action of this tick. None means hold. A `horizon` in ticks shortens the execution of chunks. `before` is the
        executed action of the last tick, from which targets are interpolated."""
        horizon = min(horizon or self._horizon, self._horizon)
        self._executed = before
        if self._is_watching:  # what was computed for an earlier tick is out of date
            self._request, self._is_watching = None, False
        self._take_answer(tick, horizon)
        if self._request is None and self._is_due(tick, horizon):
            self._send_request(tick, horizon)
            self._take_answer(tick, horizon)  # simulated inference may take no time
        plan = self._plan
        if plan is None or not plan.covers(tick):
            self._telemetry.count("starved" if self._mode.overlaps and plan is not None else "waiting")
            self._check_stall()
            return None
        index = tick - plan.origin
        alone = self.proposal_for(tick) if tick < self._alone_until else None
        return PlannedAction(
            action=plan.actions[index] if alone is None else alone[0],
            policy_version=plan.policy_version,
            chunk_id=plan.chunk_id,
            chunk_index=index,
        )

    def _is_due(self, tick: int, horizon: int) -> bool:
        plan = self._plan
        return plan is None or plan.origin < self._prompt_row or plan.is_due(tick, horizon=horizon)

    def update_proposal(self, tick: int) -> None:
        """Ask the base in time while something else acts: a person, or a hold."""
        if self._spec.base is None:
            return
        self._plan = None
        self._is_watching = self._request is not None  # the arm will be elsewhere when its actions are ready
        self._take_proposal(tick)
        if self._request is None and self._known_proposal(tick) is None:
            self._send_request(tick, self._horizon)
            self._is_watching = True
            self._take_proposal(tick)

    def proposal_for(self, tick: int) -> Array | None:
        """What the base would do from this tick on, [K, A]. None: it has not answered yet."""
        if self._base is None:
            return None
        chunk, origin = self._base
        return proposal_at(chunk, tick - origin, steps=self._spec.horizon)

    def _known_proposal(self, tick: int) -> Array | None:
        """As `proposal_for`, but None if the base is due for a new chunk."""
        assert self._spec.base is not None
        if self._base is None or tick - self._base[1] >= self._spec.base.every or self._base[1] < self._prompt_row:
            return None
        return self.proposal_for(tick)

    def _take_proposal(self, tick: int) -> None:
        """Use the pending answer, if it is ready, only for the base's chunk in it."""
        if (received := self._receive(tick)) is not None:
            self._keep_proposal(*received)

    def _keep_proposal(self, request: Request, answer: Answer) -> None:
        if answer.proposal is not None and np.isfinite(answer.proposal).all():
            self._base = (np.array(answer.proposal, np.float32), request.row)
            self.embedding = None if answer.embedding is None else np.array(answer.embedding, np.float32)

    def _send_request(self, tick: int, horizon: int) -> None:
        plan = self._plan
        if self._spec.base is not None and self._propose is not None:
            known = self._known_proposal(tick)
            unknown = np.full((self._spec.horizon, *self._spec.action.shape), np.nan, np.float32)
            self._propose(tick, unknown if known is None else known, self.embedding)
        prefix = self._mode.prefix(plan, tick=tick)
        num_ticks = covering_ticks(self._spec.horizon, self._ticks)
        # guidance needs the executed part of the old chunk as horizon, so that the rest is valid to its end
        used = tick - plan.origin if plan is not None and prefix is not None else horizon
        self._before = self._executed
        delay = self._delays.estimate(most=num_ticks - used)
        # a step that has begun is used
        num_used = min(begun_steps(used, self._ticks), self._spec.horizon)
        self._request = Request(
            row=tick,
            first=self._first,
            # a step that begins before the new chunk runs is committed as a whole
            delay=min(begun_steps(delay, self._ticks), self._spec.horizon - num_used),
            horizon=max(num_used, 1),
            seed=int(self._rng.integers(2**63)),
            deterministic=self._deterministic,
            prefix=None if prefix is None else self._committed(prefix, num_used=num_used),
        )
        self._requested_ns = self._clock.now_ns()
        self._inference.ask(self._request)

    def _committed(self, rest: Array, *, num_used: int) -> Array:
        """The rest of the plan in steps of the policy, from the current tick on; NaN where it has no whole step."""
        if self._ticks == 1:
            return rest
        steps = to_steps(self._spec.parts, rest, self._ticks)
        steps[self._spec.horizon - num_used :] = np.nan
        return steps

    def _receive(self, tick: int) -> tuple[Request, Answer] | None:
        """The pending request and its answer, if it is ready and valid."""
        request = self._request
        if request is None:
            return None
        if self._simulated_delay is not None:
            if tick - request.row < self._simulated_delay:
                return None
            answer = self._inference.answer(wait=True)
        else:
            answer = self._inference.answer(wait=False)
        if answer is None:
            return None
        self._request, self._is_watching = None, False
        return (request, answer) if self._is_good(answer) else None

    def _take_answer(self, tick: int, horizon: int) -> None:
        """Use the answer if it is ready and valid."""
        if (received := self._receive(tick)) is None:
            return
        request, answer = received
        self._keep_proposal(request, answer)
        delay = tick - request.row
        self._delays.measured(delay)
        before = self._before if self._mode.overlaps else self._executed  # the tick before the chunk's first
        actions = to_ticks(self._spec.parts, answer.actions, self._ticks, how=self._resample, before=before)
        chunk = Plan(
            actions=actions,
            origin=request.row,
            num_usable=len(actions),
            policy_version=answer.policy_version,
            chunk_id=self._chunk_id + 1,
        )
        placed = self._mode.place(chunk, before=self._plan, tick=tick, horizon=horizon)
        jump = None
        if placed.covers(tick) and self._plan is not None and self._plan.covers(tick):
            gap = placed.actions[tick - placed.origin] - self._plan.actions[tick - self._plan.origin]
            jump = float(np.abs(gap / self._scale).max())
        self._telemetry.answer(latency_ns=answer.latency_ns, delay=delay, jump=jump)
        if not placed.covers(tick):  # inference took longer than the chunk lasts
            self._telemetry.count("late_chunks")
            return
        self._plan = placed
        self._chunk_id += 1

    def _is_good(self, answer: Answer) -> bool:
        if answer.policy_version == NO_ANSWER:
            self._telemetry.count("unanswered")
            return False
        if (
            answer.actions.shape == (self._spec.horizon, *self._spec.action.shape)
            and np.isfinite(answer.actions).all()
        ):
            self._num_bad = 0
            return True
        self._num_bad += 1
        self._telemetry.count("bad_chunks")
        if self._num_bad >= self._max_bad_chunks:
            raise RobotFault(
                f"policy '{self._spec.name}' gave {self._num_bad} consecutive chunks that are not finite or not "
                f"[{self._spec.horizon}, {self._spec.action.shape[0]}]: check its weights (version "
                f"{answer.policy_version})"
            )
        return False

    def _check_stall(self) -> None:
        waited_ns = self._clock.now_ns() - self._requested_ns
        if self._request is not None and self._simulated_delay is None and waited_ns > self._stall_ns:
            raise RobotFault(f"inference has not answered for {waited_ns / NS_PER_S:.1f} s")
