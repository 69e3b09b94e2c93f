"""Which arms are ready, without Ray."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.live.run_stop import RunStop
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.driver.supervisor import RoleSupervisor


@pytest.fixture
def supervisor(tmp_path: Path) -> RoleSupervisor:
    folder = RunFolder.create(tmp_path / "r", load(["peg-insertion"], ["runtime=ray", "cluster.num_robots=3"]))
    stop = RunStop.create(folder.path)
    supervisor = RoleSupervisor(folder, live=False, stop=stop, shown=dict, on_poll=lambda: None)
    robots = {"healthy": None, "stopped": None, "new": None}
    supervisor._startup = SimpleNamespace(robots=robots, missing={}, poll=list)  # type: ignore[assignment]
    for name in ("healthy", "stopped"):
        supervisor.monitor.add(name, None, poll=lambda: None)
        report(supervisor, name)
    supervisor.monitor.poll = list  # type: ignore[method-assign]
    return supervisor


def report(supervisor: RoleSupervisor, name: str, **facts: Any) -> None:
    role = supervisor.monitor.roles[name]
    role.report, role.reported_s = {"pid": 1, "host": "h", **facts}, time.monotonic()


@pytest.mark.parametrize("problem", [{"problem": "the elbow is stuck"}, {"fault": "the elbow is stuck"}])
def test_arm_that_must_be_acknowledged_is_present_but_not_ready(
    supervisor: RoleSupervisor, problem: dict[str, str]
) -> None:
    supervisor.poll()
    assert supervisor.is_ready("stopped")
    report(supervisor, "stopped", **problem)
    supervisor.poll()
    time.sleep(0.05)
    supervisor.poll()
    assert supervisor.is_present("stopped") and not supervisor.is_ready("stopped")
    assert 0.05 <= supervisor.not_ready_s("stopped") < 5.0  # since it stopped, although it reported just now
    assert supervisor.is_ready("healthy")
    report(supervisor, "stopped")
    supervisor.poll()
    assert supervisor.is_ready("stopped")


def test_refused_arm_is_not_present(supervisor: RoleSupervisor) -> None:
    assert not supervisor.is_present("new")
    assert supervisor.not_ready_s("new") == math.inf


def test_store_that_works_on_one_episode_for_too_long_ends_the_run(supervisor: RoleSupervisor) -> None:
    supervisor.monitor.add("store", None, poll=lambda: None)
    report(supervisor, "store", doing_s={"ingesting": 119.0, "storing": 500.0})
    supervisor.poll()
    report(supervisor, "store", doing_s={"ingesting": 121.0})
    with pytest.raises(FailureError, match=r"one episode for 121 s. A labeler .* must be a SlowLabeler"):
        supervisor.poll()
