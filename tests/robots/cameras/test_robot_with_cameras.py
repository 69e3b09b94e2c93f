"""A robot with cameras: its spec, its abilities, and one copy of each frame into given memory."""

import time

import numpy as np
import pytest

from dovetail.core.abilities import Closes, HasWorld, IndependentStop, Probes, UsesBuffers
from dovetail.core.clock import NS_PER_S, RealClock, SimulatedClock
from dovetail.core.contracts import Robot, SimulatedRobot
from dovetail.core.errors import RobotError, RobotFault, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.robots.cameras import RobotWithCameras
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.live import LiveArm, LiveArmConfig

SHAPE = (6, 8, 3)


class HandCamera:
    """A camera whose frames a test gives."""

    def __init__(self, name="front", *, depth=False, shape=SHAPE):
        self.name, self.num_starts, self.num_closes, self.num_reads = name, 0, 0, 0
        self.spec = {name: ArraySpec(shape=shape, dtype="uint8")}
        if depth:
            self.spec[f"{name}_depth"] = ArraySpec(shape=(*shape[:2], 1), dtype="uint16")
        self.problem = None
        self.show(1)

    def show(self, value, *, age_s=0.0):
        self.value, self.time_ns = value, time.monotonic_ns() - round(age_s * NS_PER_S)

    def start(self):
        self.num_starts += 1
        if self.problem:
            raise self.problem

    def newest_ns(self):
        if self.problem:
            raise self.problem
        return self.time_ns

    def read(self, into):
        self.num_reads += 1
        for array in into.values():
            array[...] = self.value
        return self.time_ns

    def close(self):
        self.num_closes += 1


def arm():
    return LiveArm(LiveArmConfig())


def test_spec_and_observation_have_the_images_of_all_cameras():
    front, wrist = HandCamera("front", depth=True), HandCamera("wrist")
    robot = RobotWithCameras.around(arm(), {"front": front, "wrist": wrist})
    assert {"front", "front_depth", "wrist"} < set(robot.spec.observation)
    wrist.show(9, age_s=0.1)
    seen = robot.observe()
    assert set(seen.values) == set(robot.spec.observation)
    assert (seen.values["front"] == 1).all() and (seen.values["wrist"] == 9).all()
    assert seen.values["front_depth"].dtype == np.uint16
    assert seen.captured_ns == {"front": front.time_ns, "front_depth": front.time_ns, "wrist": wrist.time_ns}


def test_robot_without_cameras_is_the_robot_itself():
    robot = arm()
    assert RobotWithCameras.around(robot, {}) is robot


def test_names_that_clash_are_refused():
    with pytest.raises(UsageError, match="camera 'gripper' and robot 'live_arm' both have an observation"):
        RobotWithCameras.around(arm(), {"gripper": HandCamera("gripper")})
    with pytest.raises(UsageError, match="camera 'front_depth' and robot .* both have an observation 'front_depth'"):
        RobotWithCameras.around(
            arm(), {"front": HandCamera("front", depth=True), "front_depth": HandCamera("front_depth")}
        )
    with pytest.raises(UsageError, match="camera 'wrist' has an image 'front'"):
        RobotWithCameras.around(arm(), {"wrist": HandCamera("front")})


class Capable(LiveArm):
    def __init__(self):
        super().__init__(LiveArmConfig())
        self.world = "a world"
        self.buffers = None

    def open_stop(self):
        return "a stop connection"

    def probe(self):
        return {"temperature": np.zeros(1)}

    def use_buffers(self, next_buffer):
        self.buffers = next_buffer


def test_abilities_of_the_robot_are_kept():
    raw = Capable()
    robot = RobotWithCameras.around(raw, {"front": HandCamera()})
    for ability in (Robot, IndependentStop, Probes, HasWorld, UsesBuffers, Closes):
        assert isinstance(robot, ability), ability
    assert robot.open_stop() == "a stop connection" and robot.world == "a world" and "temperature" in robot.probe()
    robot.use_buffers(next_buffer := lambda key: np.zeros(SHAPE, np.uint8))
    assert raw.buffers is next_buffer


def test_abilities_that_the_robot_lacks_are_not_added():
    robot = RobotWithCameras.around(arm(), {"front": HandCamera()})
    for ability in (IndependentStop, Probes, HasWorld, SimulatedRobot):
        assert not isinstance(robot, ability), ability
    assert isinstance(RobotWithCameras.around(FakeArm(FakeArmConfig()), {"front": HandCamera()}), SimulatedRobot)


def test_each_frame_is_written_once_into_the_given_buffer():
    camera = HandCamera()
    robot = RobotWithCameras.around(arm(), {"front": camera})
    ring, index = np.zeros((4, *SHAPE), np.uint8), 0
    robot.use_buffers(lambda key: ring[index])
    first = robot.observe().values["front"]
    assert np.shares_memory(first, ring[0]) and (ring[0] == 1).all()
    index = 1
    again = robot.observe()
    assert np.shares_memory(again.values["front"], ring[0]) and camera.num_reads == 1, "the same frame"
    camera.show(2)
    new = robot.observe().values["front"]
    assert np.shares_memory(new, ring[1]) and (ring[1] == 2).all() and (ring[0] == 1).all() and camera.num_reads == 2


def test_observation_keeps_its_image_without_buffers():
    camera = HandCamera()
    robot = RobotWithCameras.around(arm(), {"front": camera})
    before = robot.observe().values["front"]
    camera.show(2)
    robot.observe()
    assert (before == 1).all()


def test_cameras_start_with_the_first_observation_and_close_with_the_robot():
    cameras = {name: HandCamera(name) for name in ("a", "b", "c")}
    robot = RobotWithCameras.around(arm(), cameras)
    assert [camera.num_starts for camera in cameras.values()] == [0, 0, 0]
    robot.observe()
    robot.observe()
    assert [camera.num_starts for camera in cameras.values()] == [1, 1, 1]
    robot.close()
    assert [camera.num_closes for camera in cameras.values()] == [1, 1, 1]


@pytest.mark.parametrize("error", [RobotError("unplugged"), OSError("unplugged"), RuntimeError("unplugged")])
def test_lost_camera_stops_the_robot_with_its_name_and_starts_again_after_acknowledgement(error):
    camera = HandCamera()
    robot = SafeRobot(RobotWithCameras.around(arm(), {"front": camera}), SafetyConfig(), RealClock())
    robot.observe()
    camera.problem = error
    with pytest.raises(RobotFault, match="camera 'front'.*unplugged"):
        robot.observe()
    camera.problem = None
    camera.show(3)
    robot.acknowledge()
    assert (robot.observe().values["front"] == 3).all() and camera.num_starts == 2
    robot.hold()


def test_old_frame_holds_and_then_stops_with_the_camera_name():
    camera = HandCamera()
    robot = SafeRobot(RobotWithCameras.around(arm(), {"front": camera}), SafetyConfig(), RealClock())
    robot.observe()
    camera.show(2, age_s=0.7)
    robot.observe()
    robot.send(np.full(robot.spec.action.shape, 0.001, np.float32))
    assert robot.last_report.held
    camera.show(3, age_s=2.5)
    with pytest.raises(RobotFault, match="the newest frame of 'front' is 2.5"):
        robot.observe()


def test_capture_times_follow_the_clock_of_a_simulated_robot():
    camera, clock = HandCamera(), SimulatedClock(realtime=True)
    raw = RobotWithCameras.around(FakeArm(FakeArmConfig()), {"front": camera})
    clock.on_advance(raw.advance)
    clock.sleep_until(round(0.3 * NS_PER_S))
    camera.show(2, age_s=0.1)
    seen = raw.observe()
    assert (clock.now_ns() - seen.captured_ns["front"]) / NS_PER_S == pytest.approx(0.1, abs=0.05)
    clock.sleep_until(round(0.4 * NS_PER_S))
    assert raw.observe().captured_ns == seen.captured_ns, "the time of one frame does not change"
