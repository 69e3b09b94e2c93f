"""Arms as they come, without a Ray: who is waited for, taken in later, or refused, and what is said of it."""

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
from dovetail.runtime.ray.driver import arm_startup as muster
from dovetail.runtime.ray.driver.arm_startup import ArmStartup
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.toy_run import TOY

SPEC = FakeArm(FakeArmConfig()).spec


def says(spec: RobotSpec = SPEC, *, version: str = __version__) -> dict[str, Any]:
    return {"robot": spec.to_json(), "version": version, "task": "fake_reach", "real_time": False}


class Cluster:
    """Machines that are there, and what the arm on each answers; None: nothing yet."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.absent: set[str] = set()
        self.killed: list[str] = []

    def placed(self, place: Any, *, role: str, config: Any) -> dict[str, Any]:
        name = role.removeprefix("robots.")
        if name in self.absent:
            raise UsageError(f"machine of {name} is not there")
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
        ready = [one for one in references if self.answers.get(one) is not None]
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
        monkeypatch.setattr(muster, "ray", cluster)
        monkeypatch.setattr(muster, "placed", cluster.placed)
        return ArmStartup(folder, key="k", live=False, make=cluster.make), folder

    return made


def named(spec: RobotSpec, name: str) -> RobotSpec:
    return replace(spec, name=name)


def gathered(crew: ArmStartup) -> None:
    def look() -> None:
        crew.look()

    crew.gather(look)


def test_all_are_waited_for(begin: Any) -> None:
    cluster = Cluster(left=says(named(SPEC, "left")))
    crew, folder = begin(cluster)
    looks = iter(range(100))

    def look() -> None:
        crew.look()
        if next(looks) == 3:
            cluster.answers["right"] = says(named(SPEC, "right"))

    crew.gather(look)
    assert set(crew.robots) == {"left", "right"}
    assert [event["name"] for event in folder.events("robot")] == ["left", "right"]


def test_one_that_does_not_come_up_is_named_with_what_it_died_of(begin: Any) -> None:
    dead = RayActorError(error_msg="it died\ndovetail.core.errors.RobotFault: no such port")
    crew, _ = begin(Cluster(left=says(named(SPEC, "left")), right=dead), "cluster.robot_timeout_s=0.1")
    with pytest.raises(FailureError, match=r"'right' \(no such port\) did not come up within 0\.1 s.*min_robots"):
        gathered(crew)


def test_a_machine_that_is_not_there_is_said_at_once(begin: Any) -> None:
    cluster = Cluster(left=says(named(SPEC, "left")))
    cluster.absent.add("right")
    crew, _ = begin(cluster)
    with pytest.raises(UsageError, match="machine of right is not there"):
        gathered(crew)


def test_it_is_taken_in_when_it_comes_where_fewer_are_enough(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster, "_TRY_S", 0.0)
    cluster = Cluster(left=says(named(SPEC, "left")))
    cluster.absent.add("right")
    crew, folder = begin(cluster, "cluster.min_robots=1")
    gathered(crew)
    assert set(crew.robots) == {"left"}
    assert [event["name"] for event in folder.events("robot missing")] == ["right"]
    assert crew.look() == []
    assert "right" in crew.missing
    cluster.absent.clear()
    cluster.answers["right"] = says(named(SPEC, "right"))
    assert crew.look() == ["right"]
    assert set(crew.robots) == {"left", "right"}
    assert not crew.missing


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (says(version="0.0.1"), "'right': it has dovetail 0.0.1"),
        (says(replace(SPEC, control_hz=20.0)), "'right' differ .*10 Hz.*20 Hz.*shared"),
        (SpecMismatch("policy needs 'wrist'"), "'right': policy needs 'wrist'"),
    ],
)
def test_one_that_does_not_fit_ends_a_start(begin: Any, answer: Any, because: str) -> None:
    crew, _ = begin(Cluster(left=says(named(SPEC, "left")), right=answer))
    with pytest.raises(UsageError, match=because):
        gathered(crew)


def test_later_one_that_does_not_fit_is_refused_and_the_others_go_on(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muster, "_TRY_S", 0.0)
    cluster = Cluster(left=says(named(SPEC, "left")), right=says(version="0.0.1"))
    cluster.absent.add("right")
    crew, folder = begin(cluster, "cluster.min_robots=1")
    gathered(crew)
    cluster.absent.clear()
    assert crew.look() == []
    assert cluster.killed == ["right"]
    assert ["0.0.1" in event["reason"] for event in folder.events("robot refused")] == [True]
    assert set(crew.robots) == {"left"}
