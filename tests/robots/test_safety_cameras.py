"""A frozen camera: the arm holds, then stops with a fault that names the camera."""

import dataclasses

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, SequentialActor
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.specs import ArraySpec
from dovetail.core.types import EpisodeOrder, Observation, Outcome, Purpose
from dovetail.human.none import NoOperator
from dovetail.robots.safety import Reason, SafeRobot, SafetyConfig
from dovetail.testing.fake_learning import FakePolicy, FakePolicyConfig
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeTask,
    FakeTaskConfig,
)

TICK_NS = NS_PER_S // 10
GOING = np.array([0.01, 0, 0, 0, 0, 0, 1], np.float32)


class Filming(FakeArm):
    """Cameras with the time of their newest frame; `frozen[name]` is the time when one stopped."""

    def __init__(self, *, task=None, every_ticks=1, cameras=("front",)):
        super().__init__(FakeArmConfig(), task=task)
        self.frozen, self._every_ns, self._cameras = {}, every_ticks * TICK_NS, cameras
        self.num_stops = 0

    def observe(self):
        seen = super().observe()
        newest_ns = seen.time_ns // self._every_ns * self._every_ns
        captured_ns = {name: min(newest_ns, self.frozen.get(name, newest_ns)) for name in self._cameras}
        return Observation(time_ns=seen.time_ns, values=seen.values, captured_ns=captured_ns)

    def stop(self):
        self.num_stops += 1
        super().stop()


def wrap(raw, **config):
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    robot = SafeRobot(raw, SafetyConfig(**config), clock)
    robot.observe()
    return robot, clock


def tick(robot, clock, num=1):
    for _ in range(num):
        clock.sleep_until(clock.now_ns() + TICK_NS)
        robot.observe()


def test_frozen_camera_holds_then_faults():
    """10 Hz; frozen at 0: until 0.5 s it moves, until 2 s it holds, and then that camera is dead."""
    raw = Filming()
    robot, clock = wrap(raw)
    raw.frozen["front"] = 0
    moved = []
    for _ in range(20):
        tick(robot, clock)
        robot.send(GOING)
        moved.append(not robot.last_report.held)
        if not moved[-1]:
            assert robot.last_report.reasons is Reason.STALE
    assert moved == [True] * 5 + [False] * 15
    assert raw.num_stops == 0
    with pytest.raises(RobotFault, match=r"the newest frame of 'front' is 2\.10 s old"):
        tick(robot, clock)
    assert raw.num_stops == 1
    with pytest.raises(RobotFault, match=r"does not move after a fault.*'front'"):
        robot.send(GOING)
    with pytest.raises(RobotFault, match="does not move"):
        robot.hold()


def test_camera_that_recovers_in_time_is_no_fault():
    raw = Filming()
    robot, clock = wrap(raw)
    raw.frozen["front"] = 0
    tick(robot, clock, 10)
    robot.send(GOING)
    assert robot.last_report.held
    raw.frozen.clear()
    tick(robot, clock)
    robot.send(GOING)
    assert not robot.last_report.held
    assert robot.fault is None


def test_acknowledge_needs_a_working_camera():
    raw = Filming()
    robot, clock = wrap(raw, camera_stop_after_s=0.5)
    raw.frozen["front"] = 0
    with pytest.raises(RobotFault):
        tick(robot, clock, 6)
    robot.acknowledge()
    with pytest.raises(RobotFault, match="'front'"):
        tick(robot, clock)
    raw.frozen.clear()
    robot.acknowledge()
    tick(robot, clock)
    robot.send(GOING)
    assert not robot.last_report.held


def test_a_camera_slower_than_the_tick_is_not_frozen():
    raw = Filming(every_ticks=4)
    robot, clock = wrap(raw)
    for _ in range(30):
        tick(robot, clock)
        robot.send(GOING)
        assert not robot.last_report.held


@pytest.mark.parametrize("dead", ["left", "right"])
def test_one_frozen_camera_of_several_is_a_fault(dead):
    raw = Filming(cameras=("left", "right"))
    robot, clock = wrap(raw)
    raw.frozen[dead] = 0
    tick(robot, clock, 6)
    robot.send(GOING)
    assert robot.last_report.reasons is Reason.STALE
    with pytest.raises(RobotFault, match=f"'{dead}'"):
        tick(robot, clock, 15)


def test_camera_thresholds_must_be_ordered():
    raw = Filming()
    robot, clock = wrap(raw, camera_stale_after_s=0.15, camera_stop_after_s=10.0)
    raw.frozen["front"] = 0
    tick(robot, clock)
    robot.send(GOING)
    assert not robot.last_report.held
    tick(robot, clock)
    robot.send(GOING)
    assert robot.last_report.held
    with pytest.raises(
        ConfigError, match=r"camera_stop_after_s \(0\.1\) is below .*camera_stale_after_s \(0\.5\)"
    ):
        wrap(Filming(), camera_stop_after_s=0.1)


def test_frozen_camera_ends_the_episode_and_steps_are_kept():
    task = FakeTask(FakeTaskConfig(max_steps=60, tolerance=0.0))
    raw, clock = Filming(task=task), SimulatedClock()
    clock.on_advance(raw.advance)
    raw.frozen["front"] = 3 * TICK_NS
    actor = SequentialActor(
        ActorConfig(),
        robot=SafeRobot(raw, SafetyConfig(), clock),
        task=task,
        operator=NoOperator(),
        policy=FakePolicy(FakePolicyConfig(), robot=raw.spec),
        clock=clock,
    )
    order = EpisodeOrder(id="e", purpose=Purpose.ONLINE, seed=0, index=0, config_hash="h")
    episode = actor.run(order)
    assert episode.outcome is Outcome.ABORTED
    held = episode.column("extra/safety_held").tolist()
    assert held == [False] * 9 + [True] * 14  # it moved up to tick 8, and was stopped on looking at tick 24
    assert not episode.column("executed")[9:, :6].any()
    assert raw.num_stops
    with pytest.raises(RobotFault, match="'front'"):
        actor.run(order)


def test_oldest_frame_decides():
    raw = Filming(cameras=("front", "wrist"))
    robot, clock = wrap(raw)
    raw.frozen["wrist"] = 0
    tick(robot, clock, 14)
    raw.frozen["front"] = clock.now_ns()  # stale by the time the other is dead
    with pytest.raises(RobotFault, match="wrist"):
        tick(robot, clock, 10)


def test_ease_halves_the_motion_of_joint_targets():
    """A perfectly tracking arm is at its target, so the last command gives its speed."""
    raw = FakeBimanual(FakeBimanualConfig(image_size=(8, 6)))
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    robot = SafeRobot(raw, SafetyConfig(), clock)
    went = []
    robot.observe()
    for command in (lambda: robot.send(np.full(24, 0.08)), robot.ease, robot.ease, robot.hold):
        before = raw.observe().values["joint_pos"][0]
        command()
        clock.sleep_until(clock.now_ns() + NS_PER_S // 20)
        went.append(robot.observe().values["joint_pos"][0] - before)
    np.testing.assert_allclose(went, [0.08, 0.04, 0.02, 0.0], atol=1e-6)


# ---- cameras of a real robot


class RealCamera:
    """A robot on a real clock, as far as the filter knows, with one camera `front`."""

    def __init__(self, *, stamps=True, size=(48, 64)):
        self._arm = FakeArm(FakeArmConfig())
        image = ArraySpec(shape=(*size, 3), dtype="uint8")
        self.spec = dataclasses.replace(self._arm.spec, observation={**self._arm.spec.observation, "front": image})
        self.rng = np.random.default_rng(0)
        self.stamps, self.ahead_ns, self.repeats, self.gone = stamps, 0, False, False
        self.num_stops = 0
        self._picture = self._take()

    def _take(self):
        return self.rng.integers(0, 255, self.spec.observation["front"].shape, dtype=np.uint8)

    def observe(self):
        seen = self._arm.observe()
        if not self.repeats:
            self._picture = self._take()
        stamps = {"front": seen.time_ns + self.ahead_ns} if self.stamps and not self.gone else {}
        return Observation(
            time_ns=seen.time_ns, values={**seen.values, "front": self._picture.copy()}, captured_ns=stamps
        )

    def send(self, action):
        return self._arm.send(action)

    def stop(self):
        self.num_stops += 1

    def pass_time(self, duration_ns):
        self._arm.advance(duration_ns)


def real(**options):
    raw, clock = RealCamera(**options), SimulatedClock()
    clock.on_advance(raw.pass_time)
    robot = SafeRobot(raw, SafetyConfig(), clock)
    robot.observe()
    return raw, robot, clock


def moves_until_fault(robot, clock, *, most=60):
    """Whether the arm moved at each tick, and the fault."""
    moved = []
    for _ in range(most):
        try:
            tick(robot, clock)
        except RobotFault as fault:
            return moved, str(fault)
        robot.send(0.2 * GOING)
        moved.append(not robot.last_report.held)
    return moved, None


def test_capture_time_in_the_future_holds_then_stops():
    """0.6 let a camera with wall-clock times pass for ever."""
    raw, robot, clock = real()
    raw.ahead_ns = 1_700_000_000 * NS_PER_S
    moved, fault = moves_until_fault(robot, clock)
    assert moved == [False] * 20
    assert "capture time of 'front' has been ahead of the clock for 2.10 s" in fault
    assert raw.num_stops == 1


def test_capture_time_slightly_ahead_is_no_fault():
    raw, robot, clock = real()
    raw.ahead_ns = 20_000_000
    assert moves_until_fault(robot, clock, most=30) == ([True] * 30, None)


def test_camera_whose_capture_time_vanishes_holds_then_stops():
    raw, robot, clock = real()
    raw.gone = True
    moved, fault = moves_until_fault(robot, clock)
    assert moved == [False] * 20
    assert "camera 'front' has had no capture time for 2.10 s" in fault


@pytest.mark.parametrize("stamps", [True, False])
def test_picture_that_repeats_holds_then_stops(stamps):
    raw, robot, clock = real(stamps=stamps)
    raw.repeats = True
    moved, fault = moves_until_fault(robot, clock)
    assert not any(moved[12:])
    assert all(moved[:10])
    assert "picture of 'front' has not changed in any bit" in fault
    assert raw.num_stops == 1


def test_picture_that_differs_in_one_bit_is_no_fault():
    raw, robot, clock = real()
    raw.repeats = True
    for number in range(40):
        raw._picture[1, 1, 0] = number  # outside the sample that is compared first
        tick(robot, clock)
        robot.send(0.2 * GOING)
        assert not robot.last_report.held


def test_simulated_camera_may_repeat_its_picture():
    robot, clock = wrap(FakeArm(FakeArmConfig(image_size=(64, 48))))
    tick(robot, clock, 50)
    robot.send(GOING)
    assert not robot.last_report.held
