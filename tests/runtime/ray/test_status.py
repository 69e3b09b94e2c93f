"""What people see of the roles, from what those report: no Ray is needed to count."""

from __future__ import annotations

import json
import time
from typing import Any

from dovetail.processes.shared_memory import SharedJson
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.driver.overview import Overview


def reported(supervision: HealthMonitor, name: str, *, ago_s: float = 0.0, starts: int = 1, **report: Any) -> None:
    role = supervision.roles.get(name) or supervision.add(name, None, ask=lambda: None)
    role.report, role.heard_s, role.num_starts = (
        {"host": "h", "doing": "", **report},
        time.monotonic() - ago_s,
        starts,
    )


def test_queues_staleness_rates_and_the_age_of_weights() -> None:
    supervision = HealthMonitor(tell=lambda *_, **__: None)
    overview = Overview(supervision)
    for ago_s, done in ((10.0, 0), (0.0, 20)):
        reported(
            supervision,
            "store",
            ago_s=ago_s,
            counts={"episodes": done},
            behind_steps=40.0,
            not_in_the_books=1,
            labels_under_way=3,
        )
        reported(supervision, "learner", ago_s=ago_s, updates=10 * done, since_publication_s=2.5, version=8)
        reported(
            supervision, "robot-0", ago_s=ago_s, counts={"episodes": done}, spooled=2, version=7, versions_behind=1
        )
        overview.facts(), overview.rows()
    facts, rows = overview.facts(), {row["name"]: row for row in overview.rows()}
    assert facts["weights_age_s"] == 2.5 and facts["steps_behind"] == 40.0 and facts["versions_behind"] == 1
    assert 110 < facts["episodes_per_min"] < 121 and 18 < facts["updates_per_s"] < 20.1
    assert rows["store"]["queue"] == 4 and rows["robot-0"]["queue"] == 2
    assert rows["robot-0"]["version"] == 7 and rows["robot-0"]["versions_behind"] == 1
    assert rows["learner"]["updates_per_s"] == facts["updates_per_s"]


def test_who_was_started_anew_counts_from_nothing_and_a_fault_is_told() -> None:
    supervision = HealthMonitor(tell=lambda *_, **__: None)
    overview = Overview(supervision)
    reported(supervision, "learner", ago_s=5.0, updates=1000)
    overview.facts()
    reported(supervision, "learner", updates=10, starts=2)
    reported(supervision, "robot-0", counts={}, fault="the emergency stop was pressed")
    assert "updates_per_s" not in overview.facts()  # not a rate below nothing
    learner, robot = overview.rows()
    assert learner["starts"] == 2 and learner["health"] == "well"
    assert robot["may_acknowledge"] is False  # nothing that has no spool is an arm
    reported(supervision, "robot-0", counts={}, fault="the emergency stop was pressed", spooled=0)
    robot = overview.rows()[1]
    assert robot["may_acknowledge"]
    assert robot["health"] == "stopped: acknowledge it" and robot["problem"] == "the emergency stop was pressed"


def test_it_fits_into_a_bulletin_whatever_is_told() -> None:
    supervision = HealthMonitor(tell=lambda *_, **__: None)
    for number in range(64):
        reported(
            supervision,
            f"robot-{number}",
            counts={"episodes": 1},
            problem="x" * 5000,
            host="h" * 60,
            doing="acting",
        )
    assert len(json.dumps(Overview(supervision).seen())) < SharedJson.NUM_BYTES / 2
