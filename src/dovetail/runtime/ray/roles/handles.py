"""The other roles as a role sees them: plain calls, tried again while whoever answers is being started anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, OutOfMemoryError, RayActorError, RayError

from dovetail.core.contracts import Labeler
from dovetail.core.errors import LabelError
from dovetail.core.types import Array, Episode, EpisodeStart, SampleRequest, Segment
from dovetail.labels.panel import Hearing
from dovetail.runtime.ray.roles.permits import EpisodePermit

__all__ = ["AWAY", "LabelerHandles", "StoreHandle", "insist"]

AWAY = (RayActorError, OutOfMemoryError, NodeDiedError)  # whoever was asked has died, or cannot be reached

_PAUSE_S = 0.2
_ONCE_S = 10.0
_START_S = 600.0


def insist(call: Callable[[], Any], *, timeout_s: float = 30.0, until: Callable[[], bool] = lambda: False) -> Any:
    """What a role answers. One that has died is started anew by Ray, so it is asked again, which must be harmless, until it
    answers or `until` says that nobody needs to know any more (then None)."""
    while not until():
        try:
            return ray.get(call(), timeout=timeout_s)
        except (*AWAY, GetTimeoutError):
            time.sleep(_PAUSE_S)
    return None


class StoreHandle:
    """The store, as arms and the learner see it. Whoever gets None or False asks again later."""

    def __init__(self, role: Any, *, until: Callable[[], bool] = lambda: False) -> None:
        self._role, self._until = role, until

    def deliver(self, episode: Episode) -> bool:
        """True once the store has it for good."""
        return self._once(self._role.deliver, episode, timeout_s=60.0) is True

    def stream(self, start: EpisodeStart, segments: Sequence[Segment]) -> bool:
        """False: it wants the episode from its beginning."""
        return self._once(self._role.stream, start, list(segments)) is True

    def ticket(self, *, robot: str, real_time: bool) -> EpisodePermit | None:
        ticket: EpisodePermit | None = self._once(self._role.ticket, robot, real_time)
        return ticket

    def demonstrated(self) -> Mapping[str, Array]:
        """What was seen in the demonstrations that are learned from, by observation."""
        seen: Mapping[str, Array] = insist(self._role.demonstrated.remote, until=self._until) or {}
        return seen

    def trained_steps(self, *, more_than: int = -1, wait_s: float = 0.0) -> int | None:
        steps: int | None = self._once(self._role.trained_steps, more_than, wait_s)
        return steps

    def learned(
        self, updates: int, *, wants: SampleRequest, metrics: Mapping[str, float], waits: bool = False
    ) -> None:
        """`waits`: it can do nothing before somebody has shown it something."""
        self._role.learned.remote(updates, wants, dict(metrics), waits=waits)  # nobody waits for it

    def _once(self, method: Any, *arguments: Any, timeout_s: float = _ONCE_S) -> Any:
        try:
            return ray.get(method.remote(*arguments), timeout=timeout_s)
        except (*AWAY, GetTimeoutError):
            return None


class LabelerHandles:
    """Several labelers of one make as one panel: see `labels.panel.Panel`. All of it is slow, for it is elsewhere."""

    def __init__(
        self, roles: Sequence[Any], *, labelers: Sequence[Labeler], max_each: int, timeout_s: float
    ) -> None:
        self.labelers = labelers
        self.max_concurrent: int | None = len(roles) * max_each
        self._roles, self._timeout_s, self._turn = roles, timeout_s, 0

    def ask(self, episode: Episode) -> Hearing:
        return Hearing()

    def go_on(self, episode: Episode, hearing: Hearing) -> Hearing:
        """On whichever's turn it is. One that died, or says nothing, is away: the desk asks again, and so another."""
        self._turn += 1
        role = self._roles[self._turn % len(self._roles)]
        try:
            ray.get(role.prepare.remote(), timeout=_START_S)  # to load a model is not to hang
            heard: Hearing = ray.get(role.hear.remote(episode, hearing), timeout=self._timeout_s)
        except GetTimeoutError:  # it will never have that thread back
            ray.kill(role, no_restart=False)
            raise LabelError(
                f"a labeler has not answered for {self._timeout_s:g} s, and is started anew"
            ) from None
        except AWAY:
            raise LabelError("a labeler has died, and is started anew") from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, LabelError) else error from None
        return heard
