"""ArmStartup without Ray: which arms are waited for, join later or are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from dovetail import __version__
from dovetail.config.load import load
from dovetail.core.errors import FailureError, SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.driver import arm_startup
from dovetail.runtime.ray.driver.arm_startup import ArmStartup
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.toy_run import TOY

SPEC = FakeArm(FakeArmConfig()).spec


def facts(spec: RobotSpec = SPEC, *, version: str = __version__) -> dict[str, Any]:
    return {"robot": spec.to_json(), "version": version, "task": "fake_reach", "real_time": False}


class Cluster:
    """Machines that are present, and the facts of the arm on each; None: it has not started."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.absent: set[str] = set()
        self.killed: list[str] = []

    def role_options(self, place: Any, *, role: str, config: Any) -> dict[str, Any]:
        name = role.removeprefix("robots.")
        if name in self.absent:
            raise UsageError(f"machine of {name} is missing")
        return {}

    def make(self, arm: Any, **options: Any) -> Any:

        class Handle:
            name = arm.name

            class start:  # noqa: N801 - a method, as Ray has it
                @staticmethod
                def remote() -> str:
                    return str(arm.name)

        return Handle()

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        ready = [reference for reference in references if self.answers.get(reference) is not None]
        return ready, []

    def get(self, reference: str) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, handle: Any) -> None:
        self.killed.append(handle.name)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(cluster: Cluster, *overrides: str) -> tuple[ArmStartup, RunFolder]:
        (tmp_path / "toy.yaml").write_text(TOY)
        robots = "cluster.robots={left: {}, right: {}}"
        folder = RunFolder.create(tmp_path / "run", load([tmp_path / "toy.yaml"], [robots, *overrides]))
        monkeypatch.setattr(arm_startup, "ray", cluster)
        monkeypatch.setattr(arm_startup, "role_options", cluster.role_options)
        return ArmStartup(folder, key="k", live=False, stop_token="t", make=cluster.make), folder

    return made


def named(spec: RobotSpec, name: str) -> RobotSpec:
    return replace(spec, name=name)


def wait(startup: ArmStartup) -> None:
    def poll() -> None:
        startup.poll()

    startup.wait(poll)


def test_startup_waits_for_all_arms(begin: Any) -> None:
    cluster = Cluster(left=facts(named(SPEC, "left")))
    startup, folder = begin(cluster)
    polls = iter(range(100))

    def poll() -> None:
        startup.poll()
        if next(polls) == 3:
            cluster.answers["right"] = facts(named(SPEC, "right"))

    startup.wait(poll)
    assert set(startup.robots) == {"left", "right"}
    assert [event["name"] for event in folder.events("robot")] == ["left", "right"]


def test_arm_that_does_not_start_is_named_with_the_reason(begin: Any) -> None:
    dead = RayActorError(error_msg="it died\ndovetail.core.errors.RobotFault: no such port")
    startup, _ = begin(Cluster(left=facts(named(SPEC, "left")), right=dead), "cluster.robot_timeout_s=0.1")
    with pytest.raises(FailureError, match=r"'right' \(no such port\) did not start within 0\.1 s.*min_robots"):
        wait(startup)


def test_missing_machine_fails_at_once(begin: Any) -> None:
    cluster = Cluster(left=facts(named(SPEC, "left")))
    cluster.absent.add("right")
    startup, _ = begin(cluster)
    with pytest.raises(UsageError, match="machine of right is missing"):
        wait(startup)


def test_missing_arm_joins_later_with_min_robots(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_startup, "_RETRY_S", 0.0)
    cluster = Cluster(left=facts(named(SPEC, "left")))
    cluster.absent.add("right")
    startup, folder = begin(cluster, "cluster.min_robots=1")
    wait(startup)
    assert set(startup.robots) == {"left"}
    assert [event["name"] for event in folder.events("robot missing")] == ["right"]
    assert startup.poll() == []
    assert "right" in startup.missing
    cluster.absent.clear()
    cluster.answers["right"] = facts(named(SPEC, "right"))
    assert startup.poll() == ["right"]
    assert set(startup.robots) == {"left", "right"}
    assert not startup.missing


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (facts(version="0.0.1"), "'right': it has dovetail 0.0.1"),
        (facts(replace(SPEC, control_hz=20.0)), "'right' differ .*10 Hz.*20 Hz.*shared"),
        (SpecMismatch("policy needs 'wrist'"), "'right': policy needs 'wrist'"),
    ],
)
def test_arm_that_does_not_fit_fails_the_start(begin: Any, answer: Any, because: str) -> None:
    startup, _ = begin(Cluster(left=facts(named(SPEC, "left")), right=answer))
    with pytest.raises(UsageError, match=because):
        wait(startup)


def test_late_arm_that_does_not_fit_is_refused(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_startup, "_RETRY_S", 0.0)
    cluster = Cluster(left=facts(named(SPEC, "left")), right=facts(version="0.0.1"))
    cluster.absent.add("right")
    startup, folder = begin(cluster, "cluster.min_robots=1")
    wait(startup)
    cluster.absent.clear()
    assert startup.poll() == []
    assert cluster.killed == ["right"]
    assert ["0.0.1" in event["reason"] for event in folder.events("robot refused")] == [True]
    assert set(startup.robots) == {"left"}
