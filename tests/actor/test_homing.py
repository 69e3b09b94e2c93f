"""Homing before each episode: in steps and verified, or a fault."""

import numpy as np
import pytest

from dovetail.actor.homing import Home, go_home
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.types import Outcome
from dovetail.robots.safety import SafeRobot, SafetyConfig
from support.acting import ChunkPolicy, FakeWorkcell, order
from support.delayed_robots import LAYOUTS, TICK_NS, DelayedRobot

HOME = tuple(np.linspace(-0.4, 0.4, 24).tolist())


def test_homing_moves_in_steps_and_verifies_arrival():
    cell = FakeWorkcell(bimanual=True, max_steps=3)
    seen = []
    reset = cell.task.reset
    cell.task.reset = lambda robot, rng: (seen.append(robot.observe().values["joint_pos"]), reset(robot, rng=rng))
    cell.raw.place(np.full(24, 1.0), np.zeros(24))
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), home=Home(action=HOME))
    assert loop.run(order()).outcome is Outcome.TIMEOUT
    np.testing.assert_allclose(seen[0], HOME, atol=0.02)  # before the task did anything
    way = np.abs(np.diff([np.full(24, 1.0), *cell.sent[:-3]], axis=0)).max(axis=1)
    assert len(way) > 10
    assert way.max() <= 1.75 / 20 + 1e-6  # never more than a tick's limit: one unslewed message was a trap


def test_time_of_reset_is_the_robot_time_of_homing():
    cell = FakeWorkcell(bimanual=True, max_steps=3)
    cell.raw.place(np.full(24, 1.0), np.zeros(24))
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), home=Home(action=HOME))
    ended = loop.run(order())
    home_ticks = len(cell.sent) - ended.num_steps
    assert home_ticks > 10
    assert ended.reset_s == pytest.approx(home_ticks / cell.raw.spec.control_hz)


@pytest.mark.parametrize("ends", [False, True])
def test_motion_of_a_driver_before_the_reset_passes_the_filter_tick_by_tick(ends):
    cell, heartbeats, moving = FakeWorkcell(bimanual=True, max_steps=3), [], []

    def prepare_reset(robot, *, tick):
        for _ in range(10):
            robot.observe()
            robot.send(np.full(24, 1.0, np.float32))
            tick()
            heartbeats.append(board.control_ns)

    cell.raw.place(np.zeros(24), np.zeros(24))
    cell.raw.prepare_reset = prepare_reset
    cell.task.reset = lambda robot, rng: moving.extend(cell.sent)
    loop, board, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), should_stop=lambda: ends)
    ended = loop.run(order())
    assert ended.stopped == ends and ended.fault is None
    if ends:  # the run ends: not one more command
        assert len(cell.sent) == 1 and cell.num_stops
        return
    assert len(moving) == 10
    assert np.abs(np.diff([np.zeros(24), *moving], axis=0)).max() <= 1.75 / 20 + 1e-6
    assert heartbeats == [0] * 10  # the guard does not count on ticks: the driver may wait for its own controller


def test_homing_timeout_is_a_fault():
    cell = FakeWorkcell(bimanual=True)
    send = cell.raw.send

    def stuck(action):
        executed = send(action)
        cell.raw._motion.target[3] = 1.0  # something is in its way
        return executed

    cell.raw.send = stuck
    cell.raw.place(np.full(24, 1.0), np.zeros(24))
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), home=Home(action=HOME, timeout_s=3.0))
    with pytest.raises(RobotFault, match=r"did not reach its home pose in 3 s: joint 'left_arm4' is 1\.\d+ off"):
        loop.run(order())
    assert cell.num_stops
    assert cell.clock.now_ns() < 4e9


@pytest.mark.parametrize(
    ("bimanual", "action", "because"),
    [
        (False, (0.0,) * 7, "needs joint targets"),
        (True, (0.0,) * 23, "should be"),
        (True, (9.0,) * 24, "within the limits"),
    ],
)
def test_invalid_home_is_rejected_before_motion(bimanual, action, because):
    cell = FakeWorkcell(bimanual=bimanual)
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), home=Home(action=action))
    with pytest.raises(ConfigError, match=because):
        loop.run(order())
    assert not cell.sent


def test_homing_of_a_mobile_arm_moves_its_joints_and_not_its_base():
    """The base is a velocity part, the joints are one of three parts, and no step exceeds 1 rad/s at 10 Hz."""
    robot, clock = DelayedRobot(LAYOUTS["mobile"], delay_ns=TICK_NS), SimulatedClock()
    clock.on_advance(robot.pass_time)
    safe = SafeRobot(robot, SafetyConfig(), clock)
    target = (0.0, 0.0, 0.5, -0.5, 0.2)
    go_home(Home(action=target), safe, clock, tick=lambda: clock.sleep_until(clock.now_ns() + TICK_NS))
    np.testing.assert_allclose(robot.joints, (0.5, -0.5), atol=0.02)
    sent = np.array([action for _, action in robot.sent])
    assert not sent[:, :2].any()
    assert np.abs(np.diff(sent[:, 2:4], axis=0)).max() <= 0.15 + 1e-6
    with pytest.raises(ConfigError, match="velocities for part 'base'"):
        go_home(Home(action=(0.1, *target[1:])), safe, clock, tick=lambda: None)
