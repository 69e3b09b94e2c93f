"""A LeRobot camera behind the bridge."""

import os
import signal
import sys

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.lerobot.camera import LeRobotCamera, LeRobotCameraConfig
from dovetail.testing import check_camera
from support.lerobot_arm import FAKE, wait_for


@pytest.fixture
def make(lerobot_root):
    made = []

    def build(**changes):
        given = {
            "python": sys.executable,
            "env": {"PYTHONPATH": str(FAKE), "OMP_NUM_THREADS": "1"},
            "camera": "mini",
            "size": (32, 24),
            "fps": 60,
            "timeout_s": 5.0,
            "linger_s": 0.3,
        }
        made.append(LeRobotCamera(LeRobotCameraConfig.model_validate(given | changes), name="front"))
        return made[-1]

    yield build
    for camera in made:
        camera.close()


def buffers(camera):
    return {key: np.zeros(spec.shape, spec.dtype) for key, spec in camera.spec.items()}


@pytest.mark.parametrize("depth", [False, True])
def test_camera_passes_the_conformance_suite(make, depth):
    check_camera(lambda: make(depth=depth, config={"use_depth": depth}))


def test_new_frames_have_new_capture_times_and_depth(make):
    camera = make(depth=True, config={"use_depth": True})
    assert camera.spec["front"].shape == (24, 32, 3) and camera.spec["front_depth"].dtype == "uint16"
    with pytest.raises(RobotError, match="'front' is not started"):
        camera.newest_ns()
    camera.start()
    first = buffers(camera)
    first_ns = camera.read(first)
    wait_for(lambda: camera.newest_ns() > first_ns)
    second = buffers(camera)
    assert camera.read(second) > first_ns and second["front"].any() and second["front_depth"].min() > 1000
    assert not np.array_equal(first["front"], second["front"])
    camera.close()
    with pytest.raises(RobotError, match="not started"):
        camera.read(second)
    camera.start()
    assert camera.newest_ns() > first_ns


def test_a_frozen_camera_is_no_error_but_its_frame_grows_old(make):
    camera = make(config={"freeze_after": 10})
    camera.start()
    last_ns = wait_for(
        lambda: camera._session.newest[0] if camera._session.newest[1]["front"][0, 0, 0] == 10 else 0
    )
    wait_for(lambda: camera._session.thread.is_alive())
    assert camera.newest_ns() == last_ns


def test_a_killed_process_is_a_lost_camera_with_its_name_and_start_opens_it_again(make):
    camera = make()
    camera.start()
    link = camera._process.connect("stop", start=False)
    link.close()
    os.kill(link.pid, signal.SIGKILL)

    def lost():
        try:
            camera.newest_ns()
        except RobotError as error:
            return str(error)
        return None

    assert wait_for(lost).startswith("camera 'front' is lost: ")
    camera.start()
    camera.newest_ns()


def test_another_size_is_refused_with_both_sizes(make):
    camera = make(config={"width": 30})
    with pytest.raises(
        RobotError, match=r"'front' is uint8\[24, 30, 3\] instead of uint8\[24, 32, 3\]: check `size`"
    ):
        camera.start()
