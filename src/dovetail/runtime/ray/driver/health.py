"""Who is well, who has died and was started anew: asked all the time, and never waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError

from dovetail.core.errors import FailureError
from dovetail.runtime.ray.roles.handles import AWAY

__all__ = ["HealthMonitor", "Watched", "last_words"]

_EVERY_S = 0.25
_SILENT_S = 10.0
_COUNT_S = 2.0
_SHORT_S, _OFTEN = 20.0, 5  # so many short lives of a role in a row: then it will not get better


@dataclass(slots=True, kw_only=True)
class Watched:
    """A role as the driver sees it."""

    name: str
    ask: Callable[[], Any]  # for its report
    restart: Callable[[], None] = lambda: None  # have it killed, and started anew
    count: Callable[[], int] = lambda: 0  # how often Ray has started it anew
    counted: int = 0  # the same when it was last heard of first
    counted_s: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)  # the newest
    heard_s: float = field(default_factory=time.monotonic)
    num_starts: int = 0
    born_s: float = 0.0
    num_short: int = 0  # lives, in a row
    condemned: tuple[Any, Any] | None = None  # process that was ended for what it said of itself
    waiting: Any = None
    asked_s: float = 0.0
    away: bool = False

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_s

    @property
    def health(self) -> str:
        if self.report.get("problem"):
            return "stopped"
        if not self.report:
            return "starting"
        if self.away:
            return "being started anew"
        return "silent" if self.silent_s > _SILENT_S else "well"


class HealthMonitor:
    """`look` as often as you like: it takes the answers that have come, and asks those whose turn it is."""

    def __init__(self, *, tell: Callable[..., None]) -> None:
        self._tell = tell
        self.roles: dict[str, Watched] = {}

    def add(self, name: str, handle: Any, *, ask: Callable[[], Any] | None = None) -> Watched:
        """By default it is asked for its `report`."""
        role = Watched(
            name=name,
            ask=ask or handle.report.remote,
            restart=lambda: ray.kill(handle, no_restart=False),
            count=lambda: _num_restarts(handle),
        )
        self.roles[name] = role
        return role

    def remove(self, name: str) -> None:
        self.roles.pop(name, None)

    def look(self) -> list[str]:
        """Names of those that were started anew since the last look: what they were told, they have forgotten."""
        anew = [role.name for role in self.roles.values() if self._hear(role)]
        now_s = time.monotonic()
        for role in self.roles.values():
            if role.silent_s > _COUNT_S and now_s - role.counted_s > _COUNT_S:
                self._count(role)
            if role.waiting is None and now_s - role.asked_s >= _EVERY_S:
                role.asked_s = now_s
                try:
                    role.waiting = role.ask()
                except RayError as error:
                    self._lose(role, error)
        return anew

    def _hear(self, role: Watched) -> bool:
        if role.waiting is None or not ray.wait([role.waiting], timeout=0)[0]:
            return False
        reference, role.waiting = role.waiting, None
        try:
            report = ray.get(reference)
        except AWAY as error:
            self._lose(role, error)
            return False
        who = (report["pid"], report["host"])
        if who == role.condemned:  # its last word
            return False
        before, role.report, role.heard_s, role.away = role.report, report, time.monotonic(), False
        anew = (before.get("pid"), before.get("host")) != who
        if anew:
            role.num_starts += 1
            role.born_s = time.monotonic()
            role.counted = role.count()
            if role.num_starts > 1:
                self._tell("started anew", role=role.name, pid=report["pid"], host=report["host"])
        if report.get("hopeless"):  # this process, but another may do
            role.condemned, role.report = who, {**report, "problem": None}
            role.restart()
            self._lose(role, FailureError(report["problem"]))
        return anew and role.num_starts > 1

    def _count(self, role: Watched) -> None:
        """Whether one that is not heard of is still being started, or started again and again."""
        role.counted_s = time.monotonic()
        if role.count() - role.counted > _OFTEN:
            raise FailureError(f"{role.name} dies again and again before it is ready: see the log of its process")

    def _lose(self, role: Watched, error: Exception) -> None:
        if getattr(error, "actor_init_failed", False):  # Ray does not try again
            raise FailureError(f"{role.name} cannot be started: {last_words(error)}")
        if role.away:
            return
        role.away = True
        role.num_short = role.num_short + 1 if time.monotonic() - role.born_s < _SHORT_S else 0
        why = {"reason": str(error)} if isinstance(error, FailureError) else {}
        self._tell("lost", role=role.name, pid=role.report.get("pid"), **why)
        if role.num_short >= _OFTEN:
            raise FailureError(f"{role.name} has died {_OFTEN} times soon after its start: {last_words(error)}")


def _num_restarts(handle: Any) -> int:
    return int(state.actors(handle._actor_id.hex()).get("NumRestarts", 0))


def last_words(error: Exception) -> str:
    """What somebody died of, without Ray's account of where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind, colon, said = lines[-1].partition(": ") if lines else ("", "", "")
    is_ours = bool(colon) and kind.startswith("dovetail.") and " " not in kind
    return (said if is_ours else lines[-1] if lines else type(error).__name__)[:300]
