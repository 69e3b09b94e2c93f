"""Handles to other roles: plain calls that are repeated while a role restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, OutOfMemoryError, RayActorError, RayError

from dovetail.core.contracts import Labeler
from dovetail.core.errors import LabelError
from dovetail.core.types import Array, Episode, EpisodeStart, SampleRequest, Segment
from dovetail.labels.chain import ChainState, LabelerChain
from dovetail.runtime.ray.roles.permits import EpisodePermit

__all__ = ["UNREACHABLE", "Progress", "RemoteLabelers", "StoreHandle", "call_until_done"]

UNREACHABLE = (RayActorError, OutOfMemoryError, NodeDiedError)  # the role has died or its machine is gone

_RETRY_S = 0.2
_CALL_S = 10.0
_START_S = 600.0


def call_until_done(
    call: Callable[[], Any], *, timeout_s: float = 30.0, until: Callable[[], bool] = lambda: False
) -> Any:
    """The result of a remote call. It is repeated while Ray restarts the role, so it must be safe to repeat.

    Returns None once `until` returns True.
    """
    while not until():
        try:
            return ray.get(call(), timeout=timeout_s)
        except (*UNREACHABLE, GetTimeoutError):
            time.sleep(_RETRY_S)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts of the store, for the learner."""

    env_steps: int  # taken online
    trained_steps: int  # of these, in the replay; the learner owes updates for them
    num_trained_episodes: int  # online, in the replay


class StoreHandle:
    """The store, for arms and the learner. On None or False, call again later."""

    def __init__(self, role: Any, *, until: Callable[[], bool] = lambda: False) -> None:
        self._role, self._until = role, until
        self._progress = Progress(env_steps=0, trained_steps=0, num_trained_episodes=0)

    def deliver(self, episode: Episode) -> bool:
        """Send an episode. Return True if the store has it on disk."""
        return self._call(self._role.deliver, episode, timeout_s=60.0) is True

    def stream(self, start: EpisodeStart, segments: Sequence[Segment]) -> bool:
        """Send steps of a running episode. Return False if the store needs the episode from its beginning."""
        return self._call(self._role.stream, start, list(segments)) is True

    def request_permit(self, *, robot: str, real_time: bool) -> EpisodePermit | None:
        permit: EpisodePermit | None = self._call(self._role.request_permit, robot, real_time)
        return permit

    def demonstrated(self) -> Mapping[str, Array]:
        """Observations of the demonstrations by key."""
        seen: Mapping[str, Array] = call_until_done(self._role.demonstrated.remote, until=self._until) or {}
        return seen

    def progress(self, *, newer_than: int = -1, wait_s: float = 0.0) -> Progress | None:
        """The counts; waits up to `wait_s` while `trained_steps` is still `newer_than`."""
        progress: Progress | None = self._call(self._role.progress, newer_than, wait_s)
        self._progress = progress or self._progress
        return progress

    def env_steps(self) -> int:
        """Online steps so far; the last known number while the store restarts."""
        self.progress()
        return self._progress.env_steps

    def learned(
        self, updates: int, *, request: SampleRequest, metrics: Mapping[str, float], waits: bool = False
    ) -> None:
        """Report the number of online updates. `waits`: the learner needs other data first. Does not wait."""
        self._role.learned.remote(updates, request, dict(metrics), waits=waits)

    def _call(self, method: Any, *arguments: Any, timeout_s: float = _CALL_S) -> Any:
        try:
            return ray.get(method.remote(*arguments), timeout=timeout_s)
        except (*UNREACHABLE, GetTimeoutError):
            return None


class RemoteLabelers:
    """See `LabelerChain`. Fast labelers run in this process, slow ones in the labeler roles, if there are any."""

    def __init__(self, roles: Sequence[Any], *, chain: LabelerChain, timeout_s: float) -> None:
        self._roles, self._chain, self._timeout_s, self._turn = roles, chain, timeout_s, 0

    @property
    def labelers(self) -> Sequence[Labeler]:
        return self._chain.labelers

    @property
    def max_concurrent(self) -> int | None:
        each = self._chain.max_concurrent
        return None if each is None else each * max(1, len(self._roles))

    def ask(self, episode: Episode) -> ChainState:
        return self._chain.ask(episode)

    def resume(self, episode: Episode, chain_state: ChainState) -> ChainState:
        """Ask the next role. If it died or does not answer, LabelError: the dispatcher tries again, with another role."""
        if not self._roles:
            return self._chain.resume(episode, chain_state)
        self._turn += 1
        role = self._roles[self._turn % len(self._roles)]
        try:
            ray.get(role.prepare.remote(), timeout=_START_S)  # loading a model may take long
            labeled: ChainState = ray.get(role.label.remote(episode, chain_state), timeout=self._timeout_s)
        except GetTimeoutError:  # its thread hangs for good
            ray.kill(role, no_restart=False)
            raise LabelError(f"a labeler did not answer for {self._timeout_s:g} s and is restarted") from None
        except UNREACHABLE:
            raise LabelError("a labeler died and is restarted") from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, LabelError) else error from None
        return labeled
