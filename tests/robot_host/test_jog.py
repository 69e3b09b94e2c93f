"""Jogging one axis: what is refused, and what moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import UsageError
from dovetail.core.types import Observation
from dovetail.robot_host.jog import plan_jog, run_jog
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig


@pytest.fixture
def rig() -> tuple[FakeMobileArm, SafeRobot, SimulatedClock]:
    arm, clock = FakeMobileArm(FakeMobileArmConfig()), SimulatedClock()
    clock.on_advance(arm.advance)
    return arm, SafeRobot(arm, SafetyConfig(), clock), clock


@pytest.mark.parametrize(
    ("part", "axis", "by", "moved"),
    [
        ("arm", "2", 0.05, "joint"),
        ("arm", "elbow", -0.1, "joint"),
        ("base", "vx", 0.2, "base"),
        ("base", "1", -0.1, "base"),
    ],
)
def test_only_the_named_axis_moves_and_by_the_given_distance(rig, part, axis, by, moved) -> None:
    arm, safe, clock = rig
    jog = plan_jog(safe.spec, safe.observe(), part=part, axis=axis, by=by)
    run_jog(safe, clock, jog)
    joints, base = np.zeros(2), np.zeros(2)
    (joints if moved == "joint" else base)[1 if moved == "joint" else 0] = by
    assert np.allclose(arm.joints, joints, atol=1e-6)
    assert np.allclose(arm.base, base, atol=1e-6)
    assert arm.opening == 1.0
    assert not arm.velocity.any()  # it ends at rest


def test_speed_is_a_tenth_of_the_limit_unless_given(rig) -> None:
    _, safe, _ = rig
    assert plan_jog(safe.spec, safe.observe(), part="arm", axis="1", by=0.3).duration_s == pytest.approx(2.0)
    fast = plan_jog(safe.spec, safe.observe(), part="arm", axis="1", by=0.3, speed_share=1.0)
    assert fast.duration_s == pytest.approx(0.2)


def test_stop_request_ends_the_motion_on_its_way(rig) -> None:
    arm, safe, clock = rig
    jog = plan_jog(safe.spec, safe.observe(), part="arm", axis="1", by=0.5)
    asked = iter([False] * 5 + [True] * 100)
    run_jog(safe, clock, jog, should_stop=lambda: next(asked))
    assert 0.0 < arm.joints[0] < 0.2


@pytest.mark.parametrize(
    ("part", "axis", "by", "speed", "because"),
    [
        ("arm", "1", 2.5, 0.1, r"'shoulder' is at 0\.0000 rad, and \+2\.5 is outside its limits -2 to 2 rad"),
        ("arm", "1", -2.1, 0.1, "outside its limits"),
        ("arm", "0", 0.1, 0.1, "no axis '0': give 1 to 2"),
        ("arm", "3", 0.1, 0.1, "no axis '3'"),
        ("arm", "elbo", 0.1, 0.1, "Did you mean 'elbow'"),
        ("arm", "1", float("nan"), 0.1, "--by is nan"),
        ("arm", "1", 0.0, 0.1, "--by is 0"),
        ("arm", "1", 0.1, 0.0, "--speed is 0"),
        ("gripper", "1", 0.5, 0.1, "outside its limits 0 to 1"),
    ],
)
def test_wrong_motion_is_refused_in_one_line(rig, part, axis, by, speed, because) -> None:
    _, safe, _ = rig
    with pytest.raises(UsageError, match=because):
        plan_jog(safe.spec, safe.observe(), part=part, axis=axis, by=by, speed_share=speed)


def test_axis_that_nothing_measures_is_refused(rig) -> None:
    _, safe, _ = rig
    with pytest.raises(UsageError, match="nothing measures it"):
        plan_jog(safe.spec, Observation(time_ns=0, values={}), part="arm", axis="1", by=0.1)


def test_axis_that_nothing_measures_is_refused_with_what_to_add(rig) -> None:
    _, safe, _ = rig
    parts = tuple(replace(part, measured="") if part.kind == "gripper" else part for part in safe.spec.parts)
    with pytest.raises(
        UsageError, match=r"'gripper' cannot be jogged: nothing measures it\. .* `measured` of the part"
    ):
        plan_jog(replace(safe.spec, parts=parts), safe.observe(), part="gripper", axis="1", by=-0.1)
