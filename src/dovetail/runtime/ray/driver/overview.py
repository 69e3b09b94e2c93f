"""A run's roles as people see them: how each one is and how fast, what waits where, and how stale what acts is. Small: it
goes into the console's bulletin and onto the cluster's notice board."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from dovetail.runtime.ray.driver.health import HealthMonitor, Watched

__all__ = ["Overview"]

_WINDOW_S = 30.0  # that rates look back over
_QUEUES = ("spooled", "not_in_the_books", "labels_under_way")  # of a role's report: what waits there
_WORDS = 80  # letters of what went wrong
_MOST_ROLES = 40


class Overview:
    """`rows` of all roles, and `facts` of the whole. Ask as often as you like: rates are of what was reported."""

    def __init__(self, supervision: HealthMonitor) -> None:
        self._supervision = supervision
        self._paces: dict[str, _Pace] = {}

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(role) for role in list(self._supervision.roles.values())[:_MOST_ROLES]]

    def facts(self) -> dict[str, Any]:
        """Of all arms and the learner together; what nobody knows yet is left out."""
        reports = {role.name: role.report for role in self._supervision.roles.values()}
        store, learner = reports.get("store", {}), reports.get("learner", {})
        facts = {
            "episodes_per_min": self._rate("store", 60.0, "counts", "episodes"),
            "updates_per_s": self._rate("learner", 1.0, "updates"),
            "steps_behind": store.get("behind_steps"),
            "labels_under_way": store.get("labels_under_way"),
            "versions_behind": max(
                (r["versions_behind"] for r in reports.values() if "versions_behind" in r), default=None
            ),
            "weights_age_s": learner.get("since_publication_s"),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def seen(self) -> dict[str, Any]:
        """For those who watch an arm: both, and when the newest weights were published, which no file tells."""
        facts = self.facts()
        age_s = facts.get("weights_age_s")
        published = {} if age_s is None else {"weights_unix_s": time.time() - age_s}
        return {**published, "pipeline": facts, "roles": self.rows()}

    def _row(self, role: Watched) -> dict[str, Any]:
        report = role.report
        row: dict[str, Any] = {
            "name": role.name,
            "health": "stopped: acknowledge it" if report.get("fault") else role.health,
            "doing": report.get("doing", ""),
            "host": report.get("host", ""),
            "starts": role.num_starts,
        }
        queues = [report[name] for name in _QUEUES if name in report]
        if queues:
            row["queue"] = sum(queues)
        if "updates" in report:
            row["updates_per_s"] = self._rate(role.name, 1.0, "updates")
        elif "episodes" in report.get("counts", {}):
            row["episodes_per_min"] = self._rate(role.name, 60.0, "counts", "episodes")
        for name in ("version", "versions_behind"):
            if name in report:
                row[name] = report[name]
        problem = report.get("problem") or report.get("fault")
        if problem:
            row["problem"] = str(problem)[:_WORDS]
            row["may_acknowledge"] = "spooled" in report  # an arm: of others nobody can say that all is well again
        return row

    def _rate(self, name: str, per_s: float, *path: str) -> float | None:
        """How fast what a role counts grows; None before it can be told."""
        role = self._supervision.roles.get(name)
        count: Any = role.report if role else None
        for part in path:
            count = count.get(part) if isinstance(count, Mapping) else None
        if role is None or count is None:
            return None
        pace = self._paces.setdefault("/".join((name, *path)), _Pace())
        rate = pace.look(role.heard_s, count)
        return None if rate is None else round(per_s * rate, 2)


class _Pace:
    """Counts as they were reported. Who was started anew counts from nothing again."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def look(self, heard_s: float, count: float) -> float | None:
        seen = self._seen
        if seen and count < seen[-1][1]:
            seen.clear()
        if not seen or heard_s > seen[-1][0]:
            seen.append((heard_s, count))
        while len(seen) > 2 and seen[-1][0] - seen[1][0] > _WINDOW_S:
            seen.popleft()
        now_s, first = time.monotonic(), seen[0]
        return (seen[-1][1] - first[1]) / (now_s - first[0]) if now_s - first[0] > 1.0 else None
