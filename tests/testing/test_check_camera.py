"""check_camera finds each broken promise."""

import threading
import time

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec
from dovetail.testing import check_camera


class GoodCamera:
    """Frames at 100 Hz, computed when they are asked for."""

    def __init__(self):
        self.spec = {"front": ArraySpec(shape=(6, 8, 3), dtype="uint8")}
        self._began_ns = None

    def start(self):
        if self._began_ns is None:
            self._began_ns = time.monotonic_ns()

    def newest_ns(self):
        if self._began_ns is None:
            raise RobotError("camera 'front' is not started")
        return time.monotonic_ns() // 10_000_000 * 10_000_000

    def read(self, into):
        time_ns = self.newest_ns()
        for array in into.values():
            array[...] = time_ns // 10_000_000 % 251
        return time_ns

    def close(self):
        self._began_ns = None


class WallTime(GoodCamera):
    def newest_ns(self):
        return super().newest_ns() + 10**18


class Unstarted(GoodCamera):
    def newest_ns(self):
        return time.monotonic_ns() // 10_000_000 * 10_000_000


class HalfWritten(GoodCamera):
    def read(self, into):
        return super().read({key: array[:3] for key, array in into.items()})


class Still(GoodCamera):
    def read(self, into):
        time_ns = super().read(into)
        for array in into.values():
            array[...] = 7
        return time_ns


class Frozen(GoodCamera):
    def newest_ns(self):
        super().newest_ns()
        return self._began_ns


class NewTimeEachCall(GoodCamera):
    def newest_ns(self):
        super().newest_ns()
        return time.monotonic_ns()


class Slow(GoodCamera):
    def newest_ns(self):
        time.sleep(0.02)
        return super().newest_ns()

    def read(self, into):
        time_ns = GoodCamera.newest_ns(self)
        into["front"][...] = time_ns // 10_000_000 % 251
        return time_ns


class WritesLater(GoodCamera):
    """Keeps the caller's array and writes the next frame into it."""

    kept = None

    def read(self, into):
        time_ns = super().read(into)
        if self.kept is not None:
            self.kept += 1
        self.kept = into["front"]
        return time_ns


class OnceOnly(GoodCamera):
    closed = False

    def start(self):
        if self.closed:
            raise RobotError("camera 'front' is busy")
        super().start()

    def close(self):
        self.closed |= self._began_ns is not None
        super().close()


class Gray(GoodCamera):
    def __init__(self):
        super().__init__()
        self.spec = {"front": ArraySpec(shape=(6, 8), dtype="uint8")}


class OtherName(GoodCamera):
    def __init__(self):
        super().__init__()
        self.spec = {"wrist": self.spec["front"]}


def test_good_camera_passes():
    check_camera(GoodCamera)
    assert threading.active_count() < 10


@pytest.mark.parametrize(
    ("camera", "promise"),
    [
        (WallTime, "s old: use time.monotonic_ns"),
        (Unstarted, r"newest_ns\(\) before start\(\) should raise RobotError"),
        (HalfWritten, "leave pixels unwritten"),
        (Still, "was the same in 5 frames"),
        (Frozen, "no new frame within 0.3 s"),
        (NewTimeEachCall, "never gave the same frame"),
        (Slow, "receive frames on a thread"),
        (WritesLater, r"two reads of the frame|an image changed after read\(\)"),
        (OnceOnly, r"start\(\) after close\(\) should open the camera again"),
        (Gray, r"image 'front' is uint8\[6, 8\]"),
        (OtherName, "image 'wrist' of camera 'front'"),
        (object, "does not implement all of Camera"),
    ],
)
def test_broken_promise_is_named(camera, promise):
    with pytest.raises(AssertionError, match=promise):
        check_camera(camera, num_frames=5, frame_timeout_s=0.3)


def test_array_of_the_caller_may_be_part_of_a_larger_one():
    camera = GoodCamera()
    camera.start()
    ring = np.zeros((3, 6, 8, 3), np.uint8)
    camera.read({"front": ring[1]})
    assert not ring[0].any() and not ring[2].any()
