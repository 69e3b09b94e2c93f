"""A frozen camera: the arm holds, then stops with a fault that names the camera."""

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, SequentialActor
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault
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
