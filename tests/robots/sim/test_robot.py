"""SimRobot and the Robot contract."""

import numpy as np
import pytest

from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import SimulatedRobot
from dovetail.core.errors import ConfigError, RobotError
from dovetail.robots.sim import ARMS, Cameras, EmptyScene, SimRobot, SimRobotConfig, World
from dovetail.testing import check_camera


def config(**values: object) -> SimRobotConfig:
    return SimRobotConfig.model_validate(values)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("action", ["ee_delta", "joint"])
def test_observations_are_what_the_spec_says(arm: str, action: str) -> None:
    robot = SimRobot(config=config(arm=arm, action=action))
    assert isinstance(robot, SimulatedRobot)
    observation = robot.observe()
    assert set(observation.values) == set(robot.spec.observation)
    for key, spec in robot.spec.observation.items():
        assert observation.values[key].shape == spec.shape, key
        assert observation.values[key].dtype == np.dtype(spec.dtype), key
    low, high = robot.spec.action.bounds
    executed = robot.send(0.5 * (low + high))
    assert executed.shape == robot.spec.action.shape
    assert executed.dtype == np.float32


def test_send_passes_no_time_and_the_clock_does() -> None:
    robot = SimRobot()
    clock = SimulatedClock()
    clock.on_advance(robot.advance)
    before = robot.observe()
    robot.send(np.array((0.01, 0, 0, 0, 0, 0, 1), np.float32))
    assert robot.observe().time_ns == before.time_ns
    np.testing.assert_array_equal(robot.observe().values["joint_pos"], before.values["joint_pos"])
    clock.sleep_until(100_000_000)
    assert robot.observe().time_ns == 100_000_000
    assert robot.observe().values["ee_pose"][0] > before.values["ee_pose"][0] + 0.004


def test_odd_durations_add_up() -> None:
    robot = SimRobot()
    for _ in range(30):
        robot.advance(33_333_333)
    assert 998_000_000 <= robot.observe().time_ns <= 1_000_000_000


def test_stop_holds_and_may_be_called_twice() -> None:
    robot = SimRobot()
    for _ in range(5):
        robot.send(np.array((0, 0.02, 0, 0, 0, 0, 1), np.float32))
        robot.advance(100_000_000)
    robot.stop()
    targets = robot.world.joint_targets()
    robot.advance(500_000_000)
    robot.stop()
    np.testing.assert_array_equal(robot.world.joint_targets(), targets)
    assert np.abs(robot.observe().values["ee_twist"]).max() < 0.01


def test_reset_never_sets_time_back() -> None:
    robot = SimRobot()
    robot.advance(100_000_000)
    robot.world.reset()
    robot.reset_reference()
    assert robot.observe().time_ns == 100_000_000


@pytest.mark.parametrize("size", [(128, 128), (67, 41), (1, 1), (900, 700)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    robot = SimRobot(config=config(images=("wrist", "front"), image_size=size))
    values = robot.observe().values
    for name in ("wrist", "front"):
        assert values[name].shape == (size[1], size[0], 3)
        assert values[name].dtype == np.uint8
        if size != (1, 1):
            assert values[name].std() > 10.0, f"{name} is blank"
    first = values["front"].copy()
    robot.send(np.array((0, 0.02, 0, 0, 0, 0, 0), np.float32))
    robot.advance(300_000_000)
    if size != (1, 1):
        assert (robot.observe().values["front"] != first).any()
    np.testing.assert_array_equal(values["front"], first)  # pictures already handed out do not change
    robot.close()
    robot.close()


@pytest.mark.parametrize("name", ["front", "wrist"])
def test_cameras_of_the_simulator_pass_check_camera(name: str) -> None:
    robot = SimRobot(config=config(action="joint", images=("front", "wrist"), image_size=(64, 48)))
    clock = SimulatedClock()
    clock.on_advance(robot.advance)
    target = np.append(robot.world.joint_positions(), 1.0).astype(np.float32)
    target[0] += 0.2
    robot.send(target)  # the pictures change
    clock.sleep_until(60_000_000)
    (camera,) = (one for one in robot.cameras if one.name == name)
    check_camera(lambda: camera, name=name, clock=clock)
    robot.close()


def test_observations_have_the_pictures_of_the_cameras_at_the_time_of_the_world() -> None:
    robot = SimRobot(config=config(images=("front", "wrist"), image_size=(64, 48)))
    robot.advance(100_000_000)
    seen = robot.observe()
    for camera in robot.cameras:
        image = {camera.name: np.zeros((48, 64, 3), np.uint8)}
        assert camera.read(image) == camera.newest_ns() == seen.time_ns == 100_000_000
        np.testing.assert_array_equal(image[camera.name], seen.values[camera.name])
    robot.close()
    with pytest.raises(RobotError, match="camera 'front' is not started"):
        robot.cameras[0].newest_ns()
    assert robot.observe().values["front"].std() > 10.0  # an observation starts it again
    robot.close()


def test_unknown_camera_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'wrist'"):
        SimRobot(config=config(images=("wirst",)))


def test_missing_gl_gives_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("Cannot initialize\na EGL device display")

    monkeypatch.setattr("mujoco.Renderer", fail)
    cameras = Cameras(world=World(arm=ARMS["x5"], scene=EmptyScene()), names=("front",), width=8, height=8)
    with pytest.raises(RobotError, match="cannot render images") as caught:
        cameras.render("front")
    assert "\n" not in str(caught.value)


def test_viewer_without_display_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    robot = SimRobot(config=config(viewer=True))
    with pytest.raises(RobotError, match="needs a display"):
        robot.advance(2_000_000)
