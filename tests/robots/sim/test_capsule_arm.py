"""Arms of capsules, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from dovetail.robots.sim.capsule_arm import CapsuleArm, Link

BANDWIDTH = 20.0
MASS, LENGTH, ARMATURE = 0.5, 0.4, 1.0


def bar(*, weightless=0.0, max_torque=100.0, stops=(-1.0, 1.0)):
    """A horizontal bar that turns about y: positive is down."""
    link = Link(
        joint="pitch", at=(0.0, 0.0, 1.0), axis=(0.0, 1.0, 0.0), to=(LENGTH, 0.0, 0.0), mass_kg=MASS, stops=stops,
        max_torque=max_torque, armature=ARMATURE, radius=0.001,
    )  # fmt: skip
    return CapsuleArm([link], pose=np.zeros(1), bandwidth=BANDWIDTH, weightless=weightless)


def run(arm, target, seconds):
    for _ in range(round(seconds / arm.TIMESTEP_S)):
        arm.step(np.array([target]))
    return float(arm.position[0])


def test_a_joint_follows_its_target_with_the_lag_of_a_critically_damped_servo():
    arm = bar(weightless=1.0)
    # 1 - (1 + wt) exp(-wt) of the way at wt = 1 and wt = 3
    assert run(arm, 0.1, 1.0 / BANDWIDTH) == pytest.approx(0.1 * (1 - 2 * math.exp(-1)), abs=0.002)
    assert run(arm, 0.1, 2.0 / BANDWIDTH) == pytest.approx(0.1 * (1 - 4 * math.exp(-3)), abs=0.004)
    assert run(arm, 0.1, 1.0) == pytest.approx(0.1, abs=1e-5)


def test_gravity_bends_the_servo_by_its_moment_over_the_stiffness():
    inertia = ARMATURE + MASS * LENGTH**2 / 3
    sag = MASS * 9.81 * LENGTH / 2 / (BANDWIDTH**2 * inertia)  # 2.39 mrad
    arm = bar()
    assert run(arm, 0.0, 1.5) == pytest.approx(sag, rel=0.02)
    assert arm.torque == pytest.approx([-MASS * 9.81 * LENGTH / 2], rel=0.02)


def test_a_joint_ends_at_its_stop_and_a_weak_servo_does_not_lift_it():
    assert run(bar(), 1.4, 1.5) == pytest.approx(1.0, abs=0.01)
    assert run(bar(max_torque=0.3), -0.5, 5.0) == pytest.approx(1.0, abs=0.01)  # 0.98 Nm are needed


def test_without_power_it_falls_and_without_weight_it_stays():
    for weightless, least, most in ((0.0, 0.5, 1.01), (1.0, -1e-6, 1e-6)):
        arm = bar(weightless=weightless)
        arm.switch(np.zeros(1, np.bool_))
        assert least <= run(arm, 0.0, 1.2) <= most
        assert arm.torque == pytest.approx([0.0])


def test_a_person_puts_a_joint_somewhere():
    arm = bar(weightless=1.0)
    arm.switch(np.zeros(1, np.bool_))
    arm.place([0], np.array([0.7]))
    assert run(arm, 0.0, 0.2) == pytest.approx(0.7)
