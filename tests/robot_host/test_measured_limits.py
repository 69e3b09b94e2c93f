"""Measured speeds and positions that break the limits of the safety filter, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.config.safety import SafetyConfig
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Observation
from dovetail.robot_host.measured_limits import MeasuredLimits
from dovetail.testing.fakes import FakeArm, FakeArmConfig

HZ = 20.0
JOINTS = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={"joint_pos": ArraySpec(shape=(2,))},
    parts=(
        ActionPart(
            name="arm",
            kind="joint_target",
            unit="rad",
            names=("j1", "j2"),
            low=(-1.0, -1.0),
            high=(1.0, 1.0),
            max_speed=(1.0, 0.5),
            hold="measured",
            measured="joint_pos",
        ),
    ),
    control_hz=HZ,
)
BASE = RobotSpec(
    name="base",
    embodiment="base",
    observation={"twist": ArraySpec(shape=(1,))},
    parts=(
        ActionPart(
            name="base",
            kind="velocity",
            unit="m/s",
            names=("forward",),
            low=(-0.5,),
            high=(0.5,),
            hold="zero",
            measured="twist",
        ),
    ),
    control_hz=HZ,
)


class Rows:
    """A board that is filled row by row, and its limits."""

    def __init__(self, spec: RobotSpec, **safety) -> None:
        self.board = Board(BoardLayout.of(spec, extras={}, horizon=1, num_rows=16))
        self.limits = MeasuredLimits(self.board, spec, SafetyConfig(**safety))
        self._key = next(iter(spec.observation))
        self._values = {key: np.zeros(array.shape, array.dtype) for key, array in spec.observation.items()}
        self._time_ns = 0

    def begin(self) -> None:
        self.board.begin()

    def see(self, *values: float, after_s: float = 1.0 / HZ) -> str | None:
        self._time_ns += round(after_s * NS_PER_S)
        seen = {**self._values, self._key: np.array(values, np.float32)}
        self.board.measure(Observation(time_ns=self._time_ns, values=seen))
        return self.limits.violation()


def test_speed_is_measured_over_a_tenth_of_a_second():
    rows = Rows(JOINTS)  # the guard allows 1.5 and 0.75 rad/s
    rows.begin()
    positions = [(0.0, 0.0), (0.07, 0.03), (0.14, 0.06), (0.21, 0.09)]  # 1.4 and 0.6 rad/s
    assert [rows.see(*position) for position in positions] == [None] * 4
    assert rows.see(0.28, 0.13) is None  # 0.8 rad/s in the last 0.05 s, but 0.7 rad/s in the last 0.1 s
    assert rows.see(0.35, 0.18) == (
        "the guard measured 'j2' of part 'arm' at 0.90 rad/s, but its limit is 0.50 rad/s"
    )


def test_long_pause_between_two_rows_is_not_a_speed():
    rows = Rows(JOINTS)
    rows.begin()
    assert [rows.see(0.0, 0.0), rows.see(0.0, 0.0), rows.see(0.5, 0.0, after_s=2.0)] == [None] * 3


def test_measurements_before_an_acknowledgement_do_not_count():
    rows = Rows(JOINTS, guard_position_margin=0.1)
    assert [rows.see(0.0, 0.0), rows.see(0.0, 0.0)] == [None] * 2
    rows.limits.restart()  # a person has moved the arm, also out of its limits
    assert [rows.see(1.3, 0.9) for _ in range(4)] == [None] * 4
    assert "outside its limits" in (rows.see(1.41, 0.9) or "")


def test_motion_before_the_first_row_of_an_episode_counts():
    """In a reset or in homing nothing is written to the rows of the board."""
    rows = Rows(JOINTS)
    assert [rows.see(0.0, 0.0), rows.see(0.1, 0.0)] == [None] * 2
    assert rows.see(0.2, 0.0) == "the guard measured 'j1' of part 'arm' at 2.00 rad/s, but its limit is 1.00 rad/s"


def test_two_measurements_close_together_are_not_a_speed():
    """A reset may observe at any rate: noise divided by a millisecond would look fast."""
    rows = Rows(JOINTS)
    assert [rows.see(0.0, 0.0), rows.see(0.004, 0.0, after_s=0.001)] == [None] * 2


def test_ring_of_measurements_is_reused():
    rows = Rows(JOINTS)
    assert {rows.see(0.001 * number, 0.0) for number in range(600)} == {None}
    assert [rows.see(0.6 + 0.2 * number, 0.0) is None for number in range(3)] == [True, False, False]


def test_position_outside_the_limits_by_more_than_the_margin():
    rows = Rows(JOINTS, guard_position_margin=0.1)
    rows.begin()
    assert [rows.see(x, 0.0) for x in (0.99, 1.03, 1.08)] == [None] * 3
    assert rows.see(1.11, 0.0) == (
        "the guard measured 'j1' of part 'arm' at 1.110 rad, outside its limits -1.000 to 1.000 rad"
    )


def test_arm_that_starts_outside_its_limits_may_return():
    rows = Rows(JOINTS, guard_position_margin=0.1)
    rows.begin()
    assert [rows.see(x, 0.0) for x in (1.30, 1.28, 1.24, 1.30, 1.33)] == [None] * 5
    assert "outside its limits" in (rows.see(1.36, 0.0) or "")  # it had returned to 1.24


def test_robot_that_its_own_controller_moved_out_of_its_limits_may_return():
    rows = Rows(JOINTS, guard_position_margin=0.1)
    rows.begin()
    assert [rows.see(0.9, 0.0), rows.see(0.9, 0.0), rows.see(1.3, 0.0, after_s=20.0)] == [None] * 3
    assert "outside its limits" in (rows.see(1.41, 0.0, after_s=9.0) or "")


def test_measured_velocity_of_a_base():
    rows = Rows(BASE)
    rows.begin()
    assert [rows.see(0.0), rows.see(0.7), rows.see(-0.7)] == [None] * 3
    assert rows.see(-0.8) == "the guard measured 'forward' of part 'base' at 0.80 m/s, but its limit is 0.50 m/s"


def test_end_effector_that_leaves_the_workspace():
    spec = FakeArm(FakeArmConfig(control_hz=HZ)).spec
    rows = Rows(spec, workspace={"low": (-0.1, -0.1, -0.1), "high": (0.1, 0.1, 0.1)}, guard_position_margin=0.02)
    rows.begin()
    turn = (1.0, 0.0, 0.0, 0.0)
    assert [rows.see(0.0, 0.0, z, *turn) for z in (0.0, 0.05, 0.1, 0.115)] == [None] * 4
    assert "'z' of part 'arm' at 0.125 m, outside its limits -0.100 to 0.100 m" in (
        rows.see(0.0, 0.0, 0.125, *turn) or ""
    )


@pytest.mark.parametrize(("step_m", "is_fast"), [(0.05, False), (0.055, True)])
def test_end_effector_that_is_too_fast(step_m, is_fast):
    """0.02 m per tick and axis at 20 Hz are 0.4 m/s, or 0.69 m/s along the diagonal; the guard allows 1.04 m/s."""
    rows = Rows(FakeArm(FakeArmConfig(control_hz=HZ)).spec)
    rows.begin()
    found = [rows.see(i * step_m, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0) for i in range(4)]
    assert (found[2] is not None) == is_fast
