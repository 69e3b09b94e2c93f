"""Which arms are asked for anything, and which are waited for: no Ray is needed to tell."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.config.load import load
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.driver.supervisor import RoleSupervisor


@pytest.fixture
def crew(tmp_path: Path) -> RoleSupervisor:
    folder = RunFolder.create(tmp_path / "r", load(["peg-insertion"], ["runtime=ray", "cluster.num_robots=3"]))
    made = RoleSupervisor(folder, live=False, told=dict, each_look=lambda: None)
    robots = {"well": None, "ill": None, "new": None}
    made._muster = SimpleNamespace(robots=robots, missing={}, look=list)  # type: ignore[assignment]
    for name in ("well", "ill"):
        made.supervision.add(name, None, ask=lambda: None)
        report(made, name)
    made.supervision.look = list  # type: ignore[method-assign]
    return made


def report(crew: RoleSupervisor, name: str, **facts: Any) -> None:
    role = crew.supervision.roles[name]
    role.report, role.heard_s = {"pid": 1, "host": "h", **facts}, time.monotonic()


@pytest.mark.parametrize("illness", [{"problem": "the elbow is stuck"}, {"fault": "the elbow is stuck"}])
def test_one_that_somebody_must_see_to_is_not_waited_for(crew: RoleSupervisor, illness: dict[str, str]) -> None:
    crew.look()
    assert crew.is_fit("ill")
    report(crew, "ill", **illness)
    crew.look()
    time.sleep(0.05)
    crew.look()
    assert crew.is_here("ill") and not crew.is_fit("ill")
    assert 0.05 <= crew.unfit_s("ill") < 5.0  # since it stopped, though it was heard of just now
    assert crew.is_fit("well")
    report(crew, "ill")
    crew.look()
    assert crew.is_fit("ill")


def test_one_that_came_and_was_refused_is_not_here(crew: RoleSupervisor) -> None:
    assert not crew.is_here("new")
    assert crew.unfit_s("new") == math.inf
