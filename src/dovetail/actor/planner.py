"""From chunks to the action that is due: asks in time, knows how long answers take, trusts none of them blindly."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from dovetail.actor.mind import Answer, Mind, Request
from dovetail.actor.modes import Mode, Plan
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock
from dovetail.core.errors import RobotFault
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array

__all__ = ["Delays", "Due", "Planner"]


class Delays:
    """How many ticks the next answer will take: the longest of the last few, within what a chunk allows."""

    def __init__(self, window: int = 10) -> None:
        self._recent: deque[int] = deque(maxlen=window)

    def measured(self, num_ticks: int) -> None:
        self._recent.append(num_ticks)

    def estimate(self, *, most: int) -> int:
        return min(max(self._recent, default=0), max(most, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    action: Array
    policy_version: int
    chunk_id: int
    chunk_index: int


class Planner:
    """`due(tick)` each tick that the policy acts; `interrupt()` when a person does, or anything breaks the plan.

    In simulated time an answer takes `simulated_delay` ticks, and the loop waits for it then; None stands for a real
    clock, where it takes as long as it takes.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        mind: Mind,
        spec: PolicySpec,
        clock: Clock,
        telemetry: Telemetry,
        execution_horizon: int,
        simulated_delay: int | None,
        delays: Delays | None = None,
        stall_s: float = 2.0,
        max_bad_chunks: int = 5,
    ) -> None:
        mode.check(spec)
        self._mode, self._mind, self._spec, self._clock, self._telemetry = mode, mind, spec, clock, telemetry
        self._horizon = min(execution_horizon, spec.horizon)
        self._simulated_delay = simulated_delay
        self._stall_ns = round(stall_s * NS_PER_S)
        self._max_bad_chunks = max_bad_chunks
        low, high = spec.action.bounds
        self._scale = np.where(np.isfinite(high - low), np.maximum(high - low, 1e-9), 1.0)
        self._delays = delays or Delays()  # of this machine, not of an episode: kept
        self._rng = np.random.default_rng(0)
        self.reset(first=0, rng=self._rng, deterministic=False)

    def reset(self, *, first: int, rng: np.random.Generator, deterministic: bool) -> None:
        """A new episode, whose first row is `first`."""
        self._rng, self._deterministic = rng, deterministic
        self._chunk_id = -1
        self._num_bad = 0
        self.forget_before(first)

    def forget_before(self, row: int) -> None:
        """Time has passed unseen: history begins anew."""
        self._first = row
        self.interrupt()

    def interrupt(self) -> None:
        """What was planned or is being thought is void."""
        self._plan: Plan | None = None
        self._asked: Request | None = None
        self._asked_ns = 0

    def due(self, tick: int, *, horizon: int | None = None) -> Due | None:
        """The action of this tick; None where there is none, and the arm is to hold. `horizon` shortens the plan's."""
        horizon = min(horizon or self._horizon, self._horizon)
        self._take(tick, horizon)
        if self._asked is None and (self._plan is None or self._plan.is_due(tick, horizon=horizon)):
            self._ask(tick, horizon)
            self._take(tick, horizon)  # in simulated time an answer may take no time
        plan = self._plan
        if plan is None or not plan.covers(tick):
            self._telemetry.count("starved" if self._mode.overlaps and plan is not None else "waiting")
            self._check_stall()
            return None
        index = tick - plan.origin
        return Due(
            action=plan.actions[index],
            policy_version=plan.policy_version,
            chunk_id=plan.chunk_id,
            chunk_index=index,
        )

    def _ask(self, tick: int, horizon: int) -> None:
        plan = self._plan
        prefix = self._mode.prefix(plan, tick=tick)
        # the horizon of guidance is how much of the old chunk is gone: what is left of it is then valid to its end
        used = tick - plan.origin if plan is not None and prefix is not None else horizon
        self._asked = Request(
            row=tick,
            first=self._first,
            delay=self._delays.estimate(most=self._spec.horizon - used),
            horizon=max(used, 1),
            seed=int(self._rng.integers(2**63)),
            deterministic=self._deterministic,
            prefix=prefix,
        )
        self._asked_ns = self._clock.now_ns()
        self._mind.ask(self._asked)

    def _take(self, tick: int, horizon: int) -> None:
        """An answer that has come, if it is worth taking."""
        asked = self._asked
        if asked is None:
            return
        if self._simulated_delay is not None:
            if tick - asked.row < self._simulated_delay:
                return
            answer = self._mind.answer(wait=True)
        else:
            answer = self._mind.answer(wait=False)
        if answer is None:
            return
        self._asked = None
        if not self._is_good(answer):
            return
        delay = tick - asked.row
        self._delays.measured(delay)
        chunk = Plan(
            actions=answer.actions,
            origin=asked.row,
            num_usable=len(answer.actions),
            policy_version=answer.policy_version,
            chunk_id=self._chunk_id + 1,
        )
        placed = self._mode.place(chunk, before=self._plan, tick=tick, horizon=horizon)
        jump = None
        if placed.covers(tick) and self._plan is not None and self._plan.covers(tick):
            gap = placed.actions[tick - placed.origin] - self._plan.actions[tick - self._plan.origin]
            jump = float(np.abs(gap / self._scale).max())
        self._telemetry.answer(latency_ns=answer.latency_ns, delay=delay, jump=jump)
        if not placed.covers(tick):  # all of it lies in the past: thinking took longer than a chunk lasts
            self._telemetry.count("late_chunks")
            return
        self._plan = placed
        self._chunk_id += 1

    def _is_good(self, answer: Answer) -> bool:
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
                f"policy '{self._spec.name}' gave {self._num_bad} chunks in a row that are not finite or not "
                f"[{self._spec.horizon}, {self._spec.action.shape[0]}]: look at its weights (version "
                f"{answer.policy_version})"
            )
        return False

    def _check_stall(self) -> None:
        waited_ns = self._clock.now_ns() - self._asked_ns
        if self._asked is not None and self._simulated_delay is None and waited_ns > self._stall_ns:
            raise RobotFault(f"inference has not answered for {waited_ns / NS_PER_S:.1f} s")
