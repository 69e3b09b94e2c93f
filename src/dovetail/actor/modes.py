"""Modes of chunked control: when to compute the next chunk and how to join it to the last one.

A plan is a chunk placed in time: its action i belongs to tick `origin + i`.

    sequential   compute when the plan is used up; the arm holds meanwhile; the new chunk starts when it is ready
    naive        compute while the plan runs; switch when the chunk is ready (a baseline: the action may jump)
    rtc          like naive, but the policy receives the rest of the plan and its chunk continues it
    soft         like naive, but the chunk is blended with the rest of the plan; for policies without guidance
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
    """Actions [H, A] starting at tick `origin`. The first `num_usable` may be executed."""

    actions: Array
    origin: int
    num_usable: int
    policy_version: int
    chunk_id: int

    def covers(self, tick: int) -> bool:
        return 0 <= tick - self.origin < self.num_usable

    def is_due(self, tick: int, *, horizon: int) -> bool:
        """Whether the next chunk is needed: `horizon` ticks were executed, or the plan is used up."""
        return tick - self.origin >= min(horizon, self.num_usable)

    def rest(self, tick: int) -> Array:
        """The actions from a tick on, [H, A], padded with NaN."""
        rest = np.full_like(self.actions, np.nan)
        left = self.actions[min(tick - self.origin, len(self.actions)) : self.num_usable]
        rest[: len(left)] = left
        return rest


class Mode(Protocol):
    """How the planner goes from chunk to chunk."""

    @property
    def overlaps(self) -> bool:
        """Whether the next chunk is computed while the arm acts."""

    def check(self, spec: PolicySpec) -> None:
        """Raise UsageError for a policy that this mode cannot use."""

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        """The committed actions that the policy receives, [H, A]."""

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        """Place a chunk that was requested at tick `answer.origin` so that it runs from `tick` on."""


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
                f"policy '{spec.name}' gives single actions, so there is nothing to execute during inference: "
                "use actor.type=sequential or a policy with a longer horizon"
            )

    def prefix(self, plan: Plan | None, *, tick: int) -> Array | None:
        return None

    def place(self, answer: Plan, *, before: Plan | None, tick: int, horizon: int) -> Plan:
        return answer


class Rtc(Naive):
    """Real-time chunking (Black et al., 2025): the policy computes a chunk that continues the committed actions."""

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
    """Blends from the old plan to the new chunk over their common ticks."""

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
