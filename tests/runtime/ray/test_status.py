"""RoleStatus from reports, without Ray."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from dovetail.core.figures import EpisodeScore, Performance
from dovetail.processes.shared_memory import SharedJson
from dovetail.runs.status import RunStatus
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.driver.run import RayRuntime
from dovetail.runtime.ray.driver.status import RoleStatus


def reported(monitor: HealthMonitor, name: str, *, ago_s: float = 0.0, starts: int = 1, **report: Any) -> None:
    role = monitor.roles.get(name) or monitor.add(name, None, poll=lambda: None)
    role.report, role.reported_s, role.num_starts = (
        {"host": "h", "doing": "", **report},
        time.monotonic() - ago_s,
        starts,
    )


def test_queues_rates_and_age_of_weights() -> None:
    monitor = HealthMonitor(report=lambda *_, **__: None)
    status = RoleStatus(monitor)
    for ago_s, done in ((10.0, 0), (0.0, 20)):
        reported(
            monitor,
            "store",
            ago_s=ago_s,
            counts={"episodes": done},
            behind_steps=40.0,
            num_unprocessed_episodes=1,
            labels_under_way=3,
        )
        reported(monitor, "learner", ago_s=ago_s, updates=10 * done, since_publication_s=2.5, version=8)
        reported(
            monitor, "robot-0", ago_s=ago_s, counts={"episodes": done}, spooled=2, version=7, versions_behind=1
        )
        status.totals(), status.rows()
    totals, rows = status.totals(), {row["name"]: row for row in status.rows()}
    assert totals["weights_age_s"] == 2.5 and totals["steps_behind"] == 40.0 and totals["versions_behind"] == 1
    assert 110 < totals["episodes_per_min"] < 121 and 18 < totals["updates_per_s"] < 20.1
    assert rows["store"]["queue"] == 4 and rows["robot-0"]["queue"] == 2
    assert rows["robot-0"]["version"] == 7 and rows["robot-0"]["versions_behind"] == 1
    assert rows["learner"]["updates_per_s"] == totals["updates_per_s"]


def test_status_of_the_store_keeps_the_evaluations_of_the_driver() -> None:
    driver = SimpleNamespace(status=RunStatus(name="r"))
    made = Performance.of([EpisodeScore(success=True, duration_s=2.0)])
    driver.status.evaluations["after"] = made
    stored = RunStatus(name="r", env_steps=7)
    stored.remember_score(EpisodeScore(success=None, duration_s=2.0), human_share=0.0, has_success=False)
    RayRuntime._copy_status(driver, stored)  # type: ignore[arg-type]
    assert driver.status.evaluations == {"after": made}
    assert driver.status.env_steps == 7 and driver.status.has_success is False


def test_restarted_role_has_no_negative_rate_and_fault_is_shown() -> None:
    monitor = HealthMonitor(report=lambda *_, **__: None)
    status = RoleStatus(monitor)
    reported(monitor, "learner", ago_s=5.0, updates=1000)
    status.totals()
    reported(monitor, "learner", updates=10, starts=2)
    reported(monitor, "robot-0", counts={}, fault="the emergency stop was pressed")
    assert "updates_per_s" not in status.totals()  # not a negative rate
    learner, robot = status.rows()
    assert learner["starts"] == 2 and learner["health"] == "well"
    assert robot["may_acknowledge"] is False  # only an arm has a spool
    reported(monitor, "robot-0", counts={}, fault="the emergency stop was pressed", spooled=0)
    robot = status.rows()[1]
    assert robot["may_acknowledge"]
    assert robot["health"] == "stopped: acknowledge it" and robot["problem"] == "the emergency stop was pressed"


def test_status_fits_into_the_live_link() -> None:
    monitor = HealthMonitor(report=lambda *_, **__: None)
    for number in range(64):
        reported(
            monitor,
            f"robot-{number}",
            counts={"episodes": 1},
            problem="x" * 5000,
            host="h" * 60,
            doing="acting",
        )
    assert len(json.dumps(RoleStatus(monitor).for_console())) < SharedJson.NUM_BYTES / 2
