"""RealSense cameras, on the library's own software device."""

import threading
import time

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.cameras.realsense import RealsenseCamera, RealsenseConfig
from dovetail.testing import check_camera

rs = pytest.importorskip("pyrealsense2")
WIDTH, HEIGHT, FPS = 64, 48, 30


class SoftwareCamera:
    """A D435 in software, whose clock differs from ours. A thread sends frames."""

    def __init__(self, *, depth_unit_m=0.001, one_sensor=False):
        self.device = rs.software_device()
        self.device.register_info(rs.camera_info.serial_number, "1234")
        stereo = self.device.add_sensor("Stereo Module")
        color = stereo if one_sensor else self.device.add_sensor("RGB Camera")
        units = rs.option_range()
        units.min, units.max, units.step, units.default = 0.0, 0.01, 0.0, depth_unit_m
        stereo.add_option(rs.option.depth_units, units, True)
        stereo.set_option(rs.option.depth_units, depth_unit_m)
        self._sensors = {"depth": stereo, "color": color}
        self._profiles = {
            "depth": stereo.add_video_stream(_stream(rs.stream.depth, 1, 2, rs.format.z16)),
            "color": color.add_video_stream(_stream(rs.stream.color, 2, 3, rs.format.rgb8)),
        }
        same = rs.extrinsics()
        same.rotation, same.translation = [1, 0, 0, 0, 1, 0, 0, 0, 1], [0, 0, 0]
        self._profiles["depth"].register_extrinsics_to(self._profiles["color"], same)
        self.device.create_matcher(rs.matchers.default)
        self.paused, self._ending = threading.Event(), threading.Event()
        self.number, self._began_s = 0, time.monotonic()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()

    def _run(self):
        while not self._ending.wait(1 / FPS):
            if not self.paused.is_set():
                self._send()

    def _send(self):
        self.number += 1
        color = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        color[..., 0], color[:, : WIDTH // 2, 1] = self.number % 250, 200
        depth = np.full((HEIGHT, WIDTH), 500 + self.number, np.uint16)
        depth[:, : WIDTH // 2] = 400
        for name, pixels in (("depth", depth), ("color", color)):
            frame = rs.software_video_frame()
            frame.bpp = 2 if name == "depth" else 3
            frame.stride = WIDTH * frame.bpp
            frame.pixels = pixels
            frame.timestamp = 5_000_000.0 + 1e3 * (time.monotonic() - self._began_s)
            frame.domain = rs.timestamp_domain.hardware_clock
            frame.frame_number = self.number
            frame.profile = self._profiles[name].as_video_stream_profile()
            if name == "depth":
                frame.depth_units = 0.001
            self._sensors[name].on_video_frame(frame)


def _stream(kind, uid, bpp, pixel_format):
    lens = rs.intrinsics()
    lens.width, lens.height, lens.fx, lens.fy, lens.ppx, lens.ppy = WIDTH, HEIGHT, 60, 60, WIDTH / 2, HEIGHT / 2
    lens.model, lens.coeffs = rs.distortion.none, [0, 0, 0, 0, 0]
    stream = rs.video_stream()
    stream.type, stream.index, stream.uid, stream.fps = kind, 0, uid, FPS
    stream.width, stream.height, stream.bpp, stream.fmt, stream.intrinsics = WIDTH, HEIGHT, bpp, pixel_format, lens
    return stream


class OnSoftware(RealsenseCamera):
    """Finds the software device, which no bus lists."""

    def __init__(self, software, **settings):
        self._software = software
        config = {"size": [WIDTH, HEIGHT], "fps": FPS, "timeout_s": 2.0, **settings}
        super().__init__(RealsenseConfig.from_mapping(config), name="front")

    def _find_device(self):
        return self._software.device


@pytest.fixture
def software():
    with SoftwareCamera() as device:
        yield device


@pytest.mark.parametrize("depth", [False, True])
def test_realsense_passes_the_conformance_suite(software, depth):
    check_camera(lambda: OnSoftware(software, depth=depth))


@pytest.mark.parametrize("align_depth", [False, True])
def test_color_and_depth_of_one_moment_come_together(software, read, align_depth):
    camera = OnSoftware(software, depth=True, align_depth=align_depth)
    try:
        camera.start()
        images, time_ns = read(camera)
        color, depth = images["front"], images["front_depth"]
        assert depth.shape == (HEIGHT, WIDTH, 1) and depth.dtype == np.uint16
        assert (color[:, :30, 1] > 190).all() and (color[:, 34:, 1] < 10).all()
        assert depth[20, 10, 0] == 400
        assert abs(int(depth[20, 50, 0]) - 500 - int(color[20, 50, 0])) <= 1, "the same frame number"
        assert 0 <= time.monotonic_ns() - time_ns < 0.3e9
    finally:
        camera.close()


def test_images_are_cropped_rotated_and_resized_alike(software, read):
    camera = OnSoftware(
        software,
        depth=True,
        align_depth=False,
        capture_size=[WIDTH, HEIGHT],
        crop=[16, 8, 32, 32],
        rotate=90,
        size=[16, 16],
    )
    try:
        camera.start()
        images, _ = read(camera)
        color, depth = images["front"], images["front_depth"]
        assert color.shape == (16, 16, 3) and depth.shape == (16, 16, 1)
        # the left half of the picture is the upper half after a clockwise turn
        assert (color[:7, :, 1] > 180).all() and (color[9:, :, 1] < 20).all()
        assert (depth[:8] == 400).all() and (depth[8:] > 500).all()
    finally:
        camera.close()


def test_camera_that_gives_no_frames_is_lost(software):
    camera = OnSoftware(software, timeout_s=0.5)
    try:
        camera.start()
        software.paused.set()
        time.sleep(1.2)
        with pytest.raises(RobotError, match=r"camera 'front' is lost: no frame for 0.5 s. Try reset_at_start"):
            camera.newest_ns()
        software.paused.clear()
        camera.start()
        camera.newest_ns()
    finally:
        camera.close()


def test_mode_that_the_camera_lacks_is_one_line(software):
    with pytest.raises(
        RobotError, match=r"camera 'front': it has no color stream of 640x480 at 30 fps. Set capture_size"
    ):
        OnSoftware(software, size=[640, 480]).start()


def test_depth_unit_is_set_on_the_camera(software):
    camera = OnSoftware(software, depth=True, align_depth=False, depth_unit_m=0.0001)
    try:
        camera.start()
        unit_m = software.device.query_sensors()[0].get_option(rs.option.depth_units)
        assert unit_m == pytest.approx(0.0001)
    finally:
        camera.close()


def test_missing_camera_is_one_line():
    camera = RealsenseCamera(RealsenseConfig(serial="99"), name="wrist")
    with pytest.raises(
        RobotError, match=r"^camera 'wrist': RealSense 99 is not connected, no RealSense camera. Check"
    ):
        camera.start()
    with pytest.raises(RobotError, match=r"^camera 'wrist': no RealSense camera is connected. Check the cable$"):
        RealsenseCamera(RealsenseConfig(), name="wrist").start()


class Resetting(OnSoftware):
    """A device that can be reset: it then leaves the bus for a while, and gives frames when it is back."""

    resets = away = 0
    model = "Intel RealSense D405"

    def _find_device(self):
        if self.away:
            self.away -= 1
            raise RobotError("not connected")
        return self

    def hardware_reset(self):
        self.resets, self.away = self.resets + 1, 3
        self._software.paused.clear()

    def supports(self, info):
        return info == rs.camera_info.name

    def get_info(self, info):
        return self.model

    def query_sensors(self):
        return self._software.device.query_sensors()

    def is_connected(self):
        return True


def test_reset_waits_until_the_camera_is_back(software):
    camera = Resetting(software, reset_at_start=True)
    try:
        camera.start()
        assert camera.resets == 1 and camera.away == 0
    finally:
        camera.close()


def test_d405_that_gives_no_frames_is_reset_once_and_then_gives_them(software, read):
    software.paused.set()
    camera = Resetting(software, timeout_s=0.5)
    try:
        camera.start()
        read(camera)
        assert camera.resets == 1
    finally:
        camera.close()


@pytest.mark.parametrize(("model", "settings"), [("D435", {}), ("D405", {"reset_at_start": False})])
def test_other_camera_is_not_reset_and_the_line_names_the_setting(software, model, settings):
    software.paused.set()
    camera = Resetting(software, timeout_s=0.5, **settings)
    camera.model = model
    with pytest.raises(RobotError, match=r"no frame for 0.5 s. Try reset_at_start"):
        camera.start()
    camera.close()
    assert camera.resets == 0


def test_d405_that_falls_silent_later_is_lost_and_not_reset_while_the_arm_moves(software):
    camera = Resetting(software, timeout_s=0.5)
    try:
        camera.start()
        software.paused.set()
        time.sleep(1.2)
        with pytest.raises(RobotError, match=r"camera 'front' is lost: no frame for 0.5 s"):
            camera.newest_ns()
        assert camera.resets == 0
    finally:
        camera.close()
