"""Status of a run's roles and of the cluster. A run publishes it through a named actor, `dovetail:RUN`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import ray

from dovetail import __version__
from dovetail.config.cluster import ClusterConfig
from dovetail.runtime.ray.cluster.connection import NAMESPACE, connected
from dovetail.runtime.ray.driver.health import HealthMonitor, MonitoredRole

__all__ = ["STATUS_ACTOR", "RoleStatus", "StatusRole", "cluster_status"]

STATUS_ACTOR = "dovetail:"  # followed by the name of the run
_ANSWER_S = 5.0
_RATE_WINDOW_S = 30.0
_QUEUES = ("spooled", "num_unprocessed_episodes", "labels_under_way")  # queue lengths in a role's report
_MAX_PROBLEM_CHARS = 80
_MAX_ROLES = 40
_RAY_RESOURCES = ("node:", "memory", "object_store_memory")


class StatusRole:
    """The named actor: the driver updates it, `dovetail cluster status` reads it."""

    def __init__(self) -> None:
        self._newest: Mapping[str, Any] = {}

    def update(self, status: Mapping[str, Any]) -> None:
        self._newest = status

    def report(self) -> Mapping[str, Any]:
        return self._newest


class RoleStatus:
    """Health, speed, queues and weights of each role (`rows`), and figures of the whole run (`totals`).

    It is small: the console and the cluster's status show it.
    """

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor
        self._rates: dict[str, _Rate] = {}

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(role) for role in list(self._monitor.roles.values())[:_MAX_ROLES]]

    def totals(self) -> dict[str, Any]:
        """Figures of all arms and the learner; those that are not known yet are left out."""
        reports = {role.name: role.report for role in self._monitor.roles.values()}
        store, learner = reports.get("store", {}), reports.get("learner", {})
        totals = {
            "episodes_per_min": self._rate("store", 60.0, "counts", "episodes"),
            "updates_per_s": self._rate("learner", 1.0, "updates"),
            "steps_behind": store.get("behind_steps"),
            "labels_under_way": store.get("labels_under_way"),
            "versions_behind": max(
                (r["versions_behind"] for r in reports.values() if "versions_behind" in r), default=None
            ),
            "weights_age_s": learner.get("since_publication_s"),
        }
        return {name: value for name, value in totals.items() if value is not None}

    def for_console(self) -> dict[str, Any]:
        """Rows, totals, and the time of the newest weights, which are not on disk."""
        totals = self.totals()
        age_s = totals.get("weights_age_s")
        published = {} if age_s is None else {"weights_unix_s": time.time() - age_s}
        return {**published, "pipeline": totals, "roles": self.rows()}

    def _row(self, role: MonitoredRole) -> dict[str, Any]:
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
            row["problem"] = str(problem)[:_MAX_PROBLEM_CHARS]
            row["may_acknowledge"] = "spooled" in report  # only an arm can be acknowledged
        return row

    def _rate(self, name: str, per_s: float, *path: str) -> float | None:
        """Speed at which a count in a role's report grows; None until it is known."""
        role = self._monitor.roles.get(name)
        count: Any = role.report if role else None
        for key in path:
            count = count.get(key) if isinstance(count, Mapping) else None
        if role is None or count is None:
            return None
        rate = self._rates.setdefault("/".join((name, *path)), _Rate()).add(role.reported_s, count)
        return None if rate is None else round(per_s * rate, 2)


class _Rate:
    """Growth per second of a reported count. A restarted role counts from zero."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def add(self, reported_s: float, count: float) -> float | None:
        points = self._points
        if points and count < points[-1][1]:
            points.clear()
        if not points or reported_s > points[-1][0]:
            points.append((reported_s, count))
        while len(points) > 2 and points[-1][0] - points[1][0] > _RATE_WINDOW_S:
            points.popleft()
        elapsed_s = time.monotonic() - points[0][0]
        return (points[-1][1] - points[0][1]) / elapsed_s if elapsed_s > 1.0 else None


def cluster_status(config: ClusterConfig) -> dict[str, Any]:
    """Machines that are present, those of the config that are missing, and the status of all runs."""
    with connected(config):
        present = [_machine(node) for node in ray.nodes()]
        runs = [_run_status(entry["name"]) for entry in _status_actors()]
    alive = {machine["address"] for machine in present if machine["alive"]}
    present = [
        one for one in present if one["alive"] or one["address"] not in alive
    ]  # a machine may have rejoined
    missing = [
        {"name": name, "address": machine.address, "resources": machine.resources}
        for name, machine in config.machines.items()
        if machine.address not in alive
    ]
    return {"head_address": config.head_address, "machines": present, "missing": missing, "runs": runs}


def _machine(node: Mapping[str, Any]) -> dict[str, Any]:
    labels, resources = node.get("Labels", {}), node.get("Resources", {})
    version = labels.get("dovetail/version")
    own = {name: amount for name, amount in sorted(resources.items()) if not name.startswith(_RAY_RESOURCES)}
    return {
        "name": labels.get("dovetail/machine"),
        "host": node["NodeManagerHostname"],
        "address": node["NodeManagerAddress"],
        "alive": node["Alive"],
        "head": "node:__internal_head__" in resources,
        "resources": own,
        "version": version,
        "same_version": version in (None, __version__),
    }


def _status_actors() -> list[Mapping[str, Any]]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [one for one in actors if one["namespace"] == NAMESPACE and one["name"].startswith(STATUS_ACTOR)]


def _run_status(name: str) -> dict[str, Any]:
    run = {"run": name.removeprefix(STATUS_ACTOR)}
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
        return {**run, **ray.get(actor.report.remote(), timeout=_ANSWER_S)}
    except (ValueError, ray.exceptions.RayError) as error:  # it has ended, or is about to
        return {**run, "problem": f"does not answer: {type(error).__name__}"}
