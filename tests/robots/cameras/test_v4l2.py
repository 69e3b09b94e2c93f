"""V4L2 cameras, as far as this goes without a device: what FFmpeg is asked for, and what a missing device says."""

import av
import pytest
from pydantic import ValidationError

from dovetail.core.errors import RobotError
from dovetail.robots.cameras.v4l2 import V4l2Camera, V4l2Config
from dovetail.testing import check_camera


def camera(**settings):
    return V4l2Camera(V4l2Config.from_mapping(settings), name="front")


def test_missing_device_is_one_line():
    with pytest.raises(RobotError, match=r"^camera 'front': cannot open /dev/video97: No such file or directory$"):
        camera(device="/dev/video97").start()


def test_device_that_is_no_camera_is_one_line():
    with pytest.raises(
        RobotError, match=r"^camera 'front': cannot open /dev/null: Inappropriate ioctl for device$"
    ):
        camera(device="/dev/null").start()


def test_ffmpeg_is_asked_for_size_rate_format_and_kernel_times(monkeypatch):
    asked = {}

    def refuse(url, **arguments):
        asked.update(arguments, url=url)
        raise OSError(19, "No such device")

    monkeypatch.setattr(av, "open", refuse)
    with pytest.raises(RobotError, match="No such device"):
        camera(device="/dev/video2", size=[480, 640], rotate=90, fps=15, format="yuyv").start()
    assert (asked["url"], asked["format"]) == ("/dev/video2", "video4linux2")
    assert asked["options"] == {
        "pixel_format": "yuyv422",
        "video_size": "640x480",
        "framerate": "15",
        "timestamps": "default",
    }


def test_device_that_captures_another_size_is_a_fault(monkeypatch, emulator):
    """V4L2 drivers may choose another size than asked."""
    real_open = av.open
    monkeypatch.setattr(av, "open", lambda url, **arguments: real_open(emulator.url))
    with pytest.raises(RobotError, match=r"camera 'front': it gives pictures of 160x120 instead of 640x480"):
        camera().start()


def test_frames_of_a_device_pass_through_the_capture_class(monkeypatch, emulator, read):
    real_open = av.open
    monkeypatch.setattr(av, "open", lambda url, **arguments: real_open(emulator.url))
    front = camera(size=[60, 80], rotate=90, capture_size=[160, 120], crop=[0, 0, 160, 120])
    front.start()
    try:
        assert read(front)[0]["front"].shape == (80, 60, 3)
    finally:
        front.close()


def test_camera_passes_the_conformance_suite_on_emulated_frames(monkeypatch, emulator):
    """No device here: FFmpeg reads the emulator's stream, all else is the camera's own code."""
    real_open = av.open
    monkeypatch.setattr(av, "open", lambda url, **arguments: real_open(emulator.url))
    check_camera(lambda: camera(size=[160, 120]))


@pytest.mark.parametrize("device", ["/etc/passwd", "video0", "http://host/x", "/dev/../etc/passwd x"])
def test_other_paths_are_refused(device):
    with pytest.raises(ValidationError):
        V4l2Config.from_mapping({"device": device})


def test_crop_needs_the_captured_size():
    with pytest.raises(ValidationError, match="crop needs capture_size"):
        V4l2Config.from_mapping({"crop": [0, 0, 10, 10]})
