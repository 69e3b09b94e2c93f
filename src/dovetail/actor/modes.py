"""What to do while thinking, what to tell the policy of what is committed, and where its answer starts: one object a mode.

A plan is a chunk placed in time: its action i belongs to tick `origin + i`.

    sequential   think when the plan is used up; the arm holds meanwhile, and the answer starts when it comes
    naive        think while the plan runs; switch to the answer when it comes (the baseline: it may jump)
    rtc          the same, but the policy is told the rest of the plan, and its answer agrees with it
    soft         the same as naive, but the answer is blended with the rest of the plan: for policies without guidance
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array

__all__ = ["Mode", "Naive", "Plan", "Rtc", "Sequential", "Soft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions [H, A] from tick `origin` on, of which the first `num_usable` may be executed."""

    actions: Array
    origin: int
    num_usable: int
    policy_version: int
    chunk_id: int

    def covers(self, tick: int) -> bool:
        return 0 <= tick - self.origin < self.num_usable

    def is_due(self, tick: int, *, horizon: int) -> bool:
        """Whether it has been executed for so many ticks, or is used up: time to think again."""
        return tick - self.origin >= min(horizon, self.num_usable)

    def rest(self, tick: int) -> Array:
        """What is left from a tick on, [H, A]; where nothing is left, NaN."""
        rest = np.full_like(self.actions, np.nan)
        left = self.actions[min(tick - self.origin, len(self.actions)) : self.num_usable]
        rest[: len(left)] = left
        return rest


class Mode(Protocol):
    """One way to go from chunk to chunk."""

    @property
    def overlaps(self) -> bool:
        """Whether it thinks while it acts."""

    def check(self, spec: PolicySpec) -> None:
        """Refuse, in one line, a policy that this mode cannot use."""

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        """What the policy is told of the plan, [H, A]."""

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        """The answer to a question of tick `answer.origin`, as it is to be executed from `tick` on."""


class Sequential:
    overlaps = False

    def check(self, spec: PolicySpec) -> None:
        pass

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        return None

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        return replace(answer, origin=tick, num_usable=min(horizon, len(answer.actions)))


class Naive:
    overlaps = True

    def check(self, spec: PolicySpec) -> None:
        if spec.horizon < 2:
            raise UsageError(
                f"policy '{spec.name}' gives one action at a time, which leaves nothing to do while it thinks: "
                "use actor.type=sequential, or a policy with a horizon"
            )

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        return None

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        return answer


class Rtc(Naive):
    """Real-time chunking (Black et al., 2025): the policy itself makes its answer agree with what is committed."""

    def check(self, spec: PolicySpec) -> None:
        super().check(spec)
        if not spec.guidable:
            raise UsageError(
                f"policy '{spec.name}' cannot be guided, which actor.type=rtc needs: use a flow policy, "
                "or actor.type=soft, which blends finished chunks"
            )

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        return plan.rest(tick) if plan is not None and plan.covers(tick) else None


class Soft(Naive):
    """Fades from the old plan to the answer over what both have, beginning where the answer begins to run."""

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        if before is None or not before.covers(tick):
            return answer
        old = before.rest(answer.origin)
        start = tick - answer.origin
        num_shared = int(np.isfinite(old).all(axis=1).sum())
        index = np.arange(len(old))
        weight = np.clip((num_shared - index) / max(num_shared - start + 1, 1), 0.0, 1.0)[:, None]
        blended = np.where(weight > 0.0, weight * old + (1.0 - weight) * answer.actions, answer.actions)
        return replace(answer, actions=blended.astype(np.float32))
