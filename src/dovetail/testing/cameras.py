"""Conformance suite for cameras."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np

from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Camera, Clock
from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.testing._rig import copied, expect, expect_same

__all__ = ["check_camera"]

_MAX_AGE_S, _MAX_AHEAD_S = 1.0, 0.05
_MAX_CALL_S = 0.01
_POLL_NS = 1_000_000
_NUM_TRIES = 20


def check_camera(
    make_camera: Callable[[], Camera],
    *,
    name: str = "front",
    num_frames: int = 10,
    frame_timeout_s: float = 5.0,
    clock: Clock | None = None,
) -> None:
    """Check the contract of a camera. `make_camera` returns one with this name, whose device is connected and sees something
    that changes (a real sensor has noise). `clock`: that of a simulated camera; None: this machine's monotonic clock."""
    clock = clock or RealClock()
    camera = make_camera()
    expect(
        isinstance(camera, Camera),
        f"{type(camera).__name__} does not implement all of Camera: spec, start, newest_ns, read, close",
    )
    spec = dict(camera.spec)
    _check_spec(spec, name)
    camera.close()  # before the start: nothing to do
    _expect_error(camera, "before start()")
    try:
        camera.start()
        camera.start()  # it is started: nothing to do
        expect(dict(camera.spec) == spec, "spec changed with start(): it follows from the config alone")
        _check_whole_frame(camera)
        _check_frames(camera, clock, num_frames=num_frames, frame_timeout_s=frame_timeout_s)
    finally:
        camera.close()
    camera.close()
    _expect_error(camera, "after close()")
    try:
        camera.start()
        camera.newest_ns()
    except RobotError as error:
        raise AssertionError(f"start() after close() should open the camera again, but {error}") from error
    finally:
        camera.close()


def _check_spec(spec: Mapping[str, ArraySpec], name: str) -> None:
    expect(spec, "spec is empty: a camera has at least one image")
    for key, image in spec.items():
        expect(
            key == name or key.startswith(f"{name}_"),
            f"image '{key}' of camera '{name}' should have a name that is '{name}' or starts with '{name}_'",
        )
        proper = len(image.shape) == 3 and (image.dtype, image.shape[-1]) in (("uint8", 3), ("uint16", 1))
        expect(proper, f"image '{key}' is {image.describe()}: color is uint8 [H, W, 3], depth is uint16 [H, W, 1]")


def _expect_error(camera: Camera, when: str) -> None:
    for what, call in (("newest_ns()", camera.newest_ns), ("read()", lambda: camera.read(_buffers(camera)))):
        try:
            call()
        except RobotError:
            continue
        raise AssertionError(f"{what} {when} should raise RobotError")


def _check_whole_frame(camera: Camera) -> None:
    """Each image is written whole, into the given memory only, and the frame of one time is always the same."""
    for _ in range(_NUM_TRIES):
        rings = {key: np.zeros((3, *image.shape), image.dtype) for key, image in camera.spec.items()}
        low = {key: ring[1] for key, ring in rings.items()}
        high = {
            key: np.full(image.shape, np.iinfo(image.dtype).max, image.dtype) for key, image in camera.spec.items()
        }
        first_ns, second_ns = camera.read(low), camera.read(high)
        for key, ring in rings.items():
            expect(not ring[0].any() and not ring[2].any(), f"read() wrote outside the given array of '{key}'")
        if first_ns == second_ns:
            expect_same(
                low, high, "two reads of the frame with one capture time differ, or leave pixels unwritten"
            )
            return
    raise AssertionError("two read() calls in a row never gave the same frame: each frame has one capture time")


def _check_frames(camera: Camera, clock: Clock, *, num_frames: int, frame_timeout_s: float) -> None:
    shown_ns, before, calls_s = 0, dict[str, Array](), list[float]()
    changed = dict.fromkeys(camera.spec, False)
    kept: tuple[dict[str, Array], dict[str, Array]] | None = None
    for _ in range(num_frames):
        newest_ns = _wait_for_frame(camera, clock, shown_ns, frame_timeout_s, calls_s)
        buffers, now_ns = _buffers(camera), clock.now_ns()
        time_ns = camera.read(buffers)
        calls_s.append((clock.now_ns() - now_ns) / NS_PER_S)
        age_s = (now_ns - time_ns) / NS_PER_S
        expect(
            isinstance(time_ns, int | np.integer),
            f"read() should return the capture time in whole nanoseconds, got {time_ns!r}",
        )
        expect(time_ns >= newest_ns, "read() gave an older frame than newest_ns() announced")
        expect(time_ns > shown_ns, f"the capture time went back by {(shown_ns - time_ns) / NS_PER_S:.3f} s")
        expect(
            -_MAX_AHEAD_S <= age_s <= _MAX_AGE_S,
            f"the capture time of a new frame is {age_s:.3g} s old: use time.monotonic_ns() at capture",
        )
        for key, image in buffers.items():
            changed[key] |= key in before and not np.array_equal(image, before[key])
        if kept is not None:
            expect_same(kept[0], kept[1], "an image changed after read() returned: copy it into the given array")
        kept = kept or (buffers, copied(buffers))
        shown_ns, before = int(time_ns), buffers
    for key, did_change in changed.items():
        expect(did_change, f"image '{key}' was the same in {num_frames} frames with different capture times")
    typical_s = statistics.median(calls_s)
    expect(
        typical_s <= _MAX_CALL_S,
        f"newest_ns() and read() take {1e3 * typical_s:.1f} ms: receive frames on a thread, and let them copy only",
    )


def _wait_for_frame(camera: Camera, clock: Clock, shown_ns: int, timeout_s: float, calls_s: list[float]) -> int:
    end_ns = clock.now_ns() + round(timeout_s * NS_PER_S)
    while True:
        began_ns = clock.now_ns()
        newest_ns = camera.newest_ns()
        calls_s.append((clock.now_ns() - began_ns) / NS_PER_S)
        if newest_ns != shown_ns:
            return newest_ns
        expect(clock.now_ns() < end_ns, f"no new frame within {timeout_s:g} s")
        clock.sleep_until(clock.now_ns() + _POLL_NS)


def _buffers(camera: Camera) -> dict[str, Array]:
    return {key: np.zeros(image.shape, image.dtype) for key, image in camera.spec.items()}
