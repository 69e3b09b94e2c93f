"""Health of the roles: polled all the time without waiting; notices roles that died and were restarted by Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from dovetail.core.errors import FailureError
from dovetail.runtime.ray.patches import num_restarts
from dovetail.runtime.ray.roles.handles import UNREACHABLE

__all__ = ["HealthMonitor", "MonitoredRole", "failure_reason"]

_POLL_S = 0.25
_SILENT_S = 10.0
_COUNT_S = 2.0
_QUICK_S, _MAX_QUICK_CRASHES = 20.0, 5  # after so many quick crashes in a row, a restart will not help


@dataclass(slots=True, kw_only=True)
class MonitoredRole:
    """A role, as the driver sees it."""

    name: str
    poll: Callable[[], Any]  # calls its `report`
    restart: Callable[[], None] = lambda: None  # kills its process; Ray starts another
    count_restarts: Callable[[], int] = lambda: 0  # by Ray
    restarts_at_report: int = 0  # the same at the first report of the present process
    counted_s: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)  # the newest
    reported_s: float = field(default_factory=time.monotonic)
    num_starts: int = 0
    started_s: float = 0.0
    num_quick_crashes: int = 0  # in a row
    killed_incarnation: tuple[Any, Any] | None = None  # pid and host of a process that was killed for its problem
    pending: Any = None  # reference of the report that is under way
    polled_s: float = 0.0
    away: bool = False

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.reported_s

    @property
    def health(self) -> str:
        if self.report.get("problem"):
            return "stopped"
        if not self.report:
            return "starting"
        if self.away:
            return "restarting"
        return "silent" if self.silent_s > _SILENT_S else "well"


class HealthMonitor:
    """`poll` often: it reads the reports that have arrived and requests the next ones. `report(kind, ...)` gets events."""

    def __init__(self, *, report: Callable[..., None]) -> None:
        self._report = report
        self.roles: dict[str, MonitoredRole] = {}

    def add(self, name: str, handle: Any, *, poll: Callable[[], Any] | None = None) -> MonitoredRole:
        """Monitor a role. By default its `report` is called."""
        role = MonitoredRole(
            name=name,
            poll=poll or handle.report.remote,
            restart=lambda: ray.kill(handle, no_restart=False),
            count_restarts=lambda: num_restarts(handle),
        )
        self.roles[name] = role
        return role

    def poll(self) -> list[str]:
        """Names of roles that were restarted since the last call: they need their orders again."""
        restarted = [role.name for role in self.roles.values() if self._read(role)]
        now_s = time.monotonic()
        for role in self.roles.values():
            if role.silent_s > _COUNT_S and now_s - role.counted_s > _COUNT_S:
                self._check_restarts(role)
            if role.pending is None and now_s - role.polled_s >= _POLL_S:
                role.polled_s = now_s
                try:
                    role.pending = role.poll()
                except RayError as error:
                    self._lose(role, error)
        return restarted

    def _read(self, role: MonitoredRole) -> bool:
        if role.pending is None or not ray.wait([role.pending], timeout=0)[0]:
            return False
        reference, role.pending = role.pending, None
        try:
            report = ray.get(reference)
        except UNREACHABLE as error:
            self._lose(role, error)
            return False
        incarnation = (report["pid"], report["host"])
        if incarnation == role.killed_incarnation:  # a report from before the kill
            return False
        before, role.report, role.reported_s, role.away = role.report, report, time.monotonic(), False
        is_new = (before.get("pid"), before.get("host")) != incarnation
        if is_new:
            role.num_starts += 1
            role.started_s = time.monotonic()
            role.restarts_at_report = role.count_restarts()
            if role.num_starts > 1:
                self._report("restarted", role=role.name, pid=report["pid"], host=report["host"])
        if report.get("must_restart"):
            role.killed_incarnation, role.report = incarnation, {**report, "problem": None}
            role.restart()
            self._lose(role, FailureError(report["problem"]))
        return is_new and role.num_starts > 1

    def _check_restarts(self, role: MonitoredRole) -> None:
        """Fail if a silent role crashes again and again before its first report."""
        role.counted_s = time.monotonic()
        if role.count_restarts() - role.restarts_at_report > _MAX_QUICK_CRASHES:
            raise FailureError(
                f"{role.name} crashes again and again before it is ready. See the log of its process"
            )

    def _lose(self, role: MonitoredRole, error: Exception) -> None:
        if getattr(error, "actor_init_failed", False):  # Ray does not try again
            raise FailureError(f"{role.name} cannot be started: {failure_reason(error)}")
        if role.away:
            return
        role.away = True
        role.num_quick_crashes = role.num_quick_crashes + 1 if time.monotonic() - role.started_s < _QUICK_S else 0
        why = {"reason": str(error)} if isinstance(error, FailureError) else {}
        self._report("lost", role=role.name, pid=role.report.get("pid"), **why)
        if role.num_quick_crashes >= _MAX_QUICK_CRASHES:
            raise FailureError(
                f"{role.name} died {_MAX_QUICK_CRASHES} times soon after its start: {failure_reason(error)}"
            )


def failure_reason(error: Exception) -> str:
    """The last line of an error of Ray, without the type of our own errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind, colon, message = lines[-1].partition(": ") if lines else ("", "", "")
    is_ours = bool(colon) and kind.startswith("dovetail.") and " " not in kind
    return (message if is_ours else lines[-1] if lines else type(error).__name__)[:300]
