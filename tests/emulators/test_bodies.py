"""The MuJoCo arms of the emulators of igris_b and of the Feetech bus."""

import numpy as np
import pytest

from dovetail.emulators.feetech.arm import RANGES, EmulatedArm
from dovetail.emulators.igris_b.body import NUM_ARM, START_ARMS_RAD, Body
from dovetail.robots.sim import Cameras


@pytest.mark.parametrize("robot", ["igris_b", "so101"])
def test_the_camera_sees_the_arm_move(robot):
    if robot == "igris_b":
        body = Body(at_start_pose=True)
        arm, move = body.arm, lambda: (body.target.__setitem__(slice(0, NUM_ARM), 0.0), body.advance(1.0))
    else:
        so101 = EmulatedArm(falls=False)
        arm, move = so101.body, lambda: so101.turn(1, so101.motors[1].shaft + 500)
    cameras = Cameras(world=arm, names=("front",), width=96, height=64)
    before = cameras.render("front").copy()
    move()
    after = cameras.render("front")
    cameras.close()
    orange = (before[..., 0].astype(int) - before[..., 2] > 60).mean()
    assert 0.01 < orange < 0.6  # the arm is in the picture
    assert (np.abs(before.astype(int) - after).max(axis=-1) > 30).mean() > 0.01


def pass_time(arm, seconds):
    """In pieces, as the emulator does."""
    for _ in range(round(seconds / 0.1)):
        arm.advance(0.1)


class TestIgrisB:
    def test_the_right_side_comes_first(self):
        body = Body(at_start_pose=True)
        model = body.arm.model
        assert tuple(model.joint(at).name for at in range(model.njnt)) == body.arm.joints
        body.target[9] += 0.3  # the left elbow
        body.target[20] = 0.2  # a finger of the left hand
        before = body.position
        body.advance(1.5)
        moved = body.position - before
        assert np.flatnonzero(np.abs(moved) > 0.02).tolist() == [9, 20]
        assert moved[[9, 20]] == pytest.approx([0.3, -0.8], abs=0.01)
        assert body.arm.data.joint("left_joint_4").qpos[0] == pytest.approx(body.position[9])

    def test_it_follows_late_with_limited_speed_and_reaches_the_target(self):
        body = Body(at_start_pose=True)
        start = body.arms
        body.target[:NUM_ARM] += 0.4
        body.advance(0.1)
        moved = body.arms - start
        assert (moved > 0.02).all() and (moved < 0.3 - 0.05).all()  # at 3 rad/s, and behind
        body.advance(1.0)
        assert body.arms - START_ARMS_RAD == pytest.approx(np.full(NUM_ARM, 0.4), abs=0.01)

    def test_its_servos_bear_its_weight_and_it_stops_at_its_limits(self):
        body = Body(at_start_pose=True)
        assert body.arms == pytest.approx(START_ARMS_RAD, abs=1e-4)
        body.target[3] = -3.5
        body.advance(3.0)
        assert body.arms[3] == pytest.approx(-3.0, abs=0.02)


class TestSo101:
    def test_without_torque_it_does_not_obey_and_falls_to_its_rest(self):
        arm = EmulatedArm(falls=True)
        for motor in arm.motors.values():
            motor.set("Goal_Position", motor.position)
            motor.set("Torque_Enable", 1)
        arm.motors[2].set("Goal_Position", 2047)
        arm.motors[3].set("Goal_Position", 2048)
        pass_time(arm, 3.0)
        assert (
            arm.motors[2].position == pytest.approx(2047, abs=10)
            and arm.motors[2].get("Present_Load") & 0x3FF > 30
        )
        for motor in arm.motors.values():
            motor.set("Torque_Enable", 0)
        arm.motors[2].set("Goal_Position", 1500)
        before = arm.motors[2].position, arm.motors[3].position
        pass_time(arm, 0.3)
        assert arm.motors[2].position > before[0] + 20 and arm.motors[3].position > before[1] + 20  # forward, down
        pass_time(arm, 5.0)
        assert arm.motors[2].get("Present_Velocity") & 0x7FFF < 20  # it lies

    def test_it_starts_folded_and_at_rest(self):
        arm = EmulatedArm(falls=True)
        start = [motor.position for motor in arm.motors.values()]
        assert start[1] < 930 and start[2] > 3090 and start[3] > 2990
        assert all(low - 2 <= at <= high + 2 for at, (low, high) in zip(start, RANGES, strict=True))
        pass_time(arm, 2.0)
        assert [motor.position for motor in arm.motors.values()] == pytest.approx(start, abs=2)

    def test_it_follows_with_a_lag_and_sags(self):
        arm = EmulatedArm(falls=True)
        for motor in arm.motors.values():
            motor.set("Goal_Position", motor.position)
            motor.set("Torque_Enable", 1)
        for id_ in (2, 3, 4):
            arm.motors[id_].set("Goal_Velocity", 400)
            arm.motors[id_].set("Goal_Position", 2047)
        arm.advance(0.5)
        behind = arm.motors[3].shaft - arm.motors[3].reference  # it moves down in ticks
        assert 5 < behind < 60
        pass_time(arm, 4.0)
        lift = arm.motors[2]
        assert 0.5 < lift.shaft - lift.reference < 8  # forward and down, by less than 0.7 degrees

    def test_a_dead_motor_keeps_its_reference(self):
        arm = EmulatedArm(falls=True)
        motor = arm.motors[1]
        motor.set("Goal_Position", motor.position)
        motor.set("Torque_Enable", 1)
        arm.advance(0.1)
        before = motor.position
        motor.set("Goal_Position", before + 300)
        arm.advance(0.5, dead=(1,))
        assert motor.position == pytest.approx(before, abs=1)
        arm.advance(0.5)
        assert motor.position > before + 200

    def test_the_wrist_may_overshoot_the_end_of_its_turn_without_a_turn_back(self):
        arm = EmulatedArm(falls=False)
        motor = arm.motors[5]
        motor.set("Goal_Position", 4095)
        motor.set("Torque_Enable", 1)
        begin = motor.shaft
        pass_time(arm, 3.0)
        assert motor.shaft - begin == pytest.approx(4095 - 2047.5, abs=2)
