"""Many episodes as one video: content, pace and memory."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from dovetail.core.types import Array, Outcome
from dovetail.reports.timelapse import COLORS, Pace, Scene, time_lapse


def scene(*grays: int, shape: tuple[int, int] = (60, 80), outcome: Outcome = Outcome.SUCCESS) -> Scene:
    frames = (np.full((*shape, 3), gray, np.uint8) for gray in grays)
    return Scene(frames=frames, caption="12  online  success", outcome=outcome)


def test_frames_have_the_image_a_border_and_a_caption() -> None:
    scenes = [scene(10, 20, outcome=Outcome.SUCCESS), scene(30, outcome=Outcome.FAILURE)]
    frames = list(time_lapse(scenes, size_px=160, hold_frames=2))
    assert len(frames) == 2 + 2 + 1 + 2
    height, width = frames[0].shape[:2]
    assert (width, height) == (160 + 2 * 3, 120 + 2 * 3 + 14)
    middles = [int(frame[63, 83, 0]) for frame in frames]
    assert middles == [10, 20, 20, 20, 30, 30, 30]
    borders = [tuple(frame[1, 40]) for frame in frames]
    assert borders == [COLORS[Outcome.SUCCESS]] * 4 + [COLORS[Outcome.FAILURE]] * 3
    strip = frames[0][-13:, 6:]
    assert strip.max() > 200  # text
    assert len(set(COLORS.values())) == len(Outcome)


def test_images_of_another_shape_are_scaled_to_fit() -> None:
    frames = list(time_lapse([scene(10), scene(20, shape=(80, 60)), scene(30, shape=(6, 8))], size_px=80))
    assert len({frame.shape for frame in frames}) == 1
    assert int(frames[1][33, 43, 0]) == 20 and int(frames[1][33, 5, 0]) != 20  # bars at the sides
    assert int(frames[2][33, 5, 0]) == 30  # nothing of the previous image


def test_scene_without_frames_is_skipped() -> None:
    assert len(list(time_lapse([scene(), scene(1), scene()], size_px=32, hold_frames=3))) == 4
    assert list(time_lapse([], size_px=32)) == []


@pytest.mark.parametrize(
    ("control_hz", "speed", "fps", "every"),
    [(10, 1, 10, 1), (10, 3, 30, 1), (10, 8, 80 / 3, 3), (50, 1, 25, 2), (10, 0.5, 5, 1), (30, 1, 30, 1)],
)
def test_pace_limits_the_frame_rate(control_hz: float, speed: float, fps: float, every: int) -> None:
    pace = Pace.of(control_hz, speed=speed)
    assert pace.fps == pytest.approx(fps)
    assert pace.every(control_hz) == every


def test_pace_is_the_same_for_another_control_rate() -> None:
    pace = Pace.of(10.0, speed=4.0)  # 20 fps, each 2nd step
    assert pace.every(20.0) == 4
    assert pace.every(5.0) == 1


def test_frames_are_not_kept() -> None:
    alive: dict[int, weakref.ref[Array]] = {}

    def images() -> Iterator[Array]:
        for _ in range(10):
            frame = np.zeros((40, 40, 3), np.uint8)
            alive[len(alive)] = weakref.ref(frame)
            yield frame

    scenes = (Scene(frames=images(), caption="", outcome=Outcome.TIMEOUT) for _ in range(30))
    num_alive = [sum(ref() is not None for ref in alive.values()) for _ in time_lapse(scenes, size_px=40)]
    assert len(num_alive) == len(alive) == 300
    assert max(num_alive) <= 2


def test_memory_does_not_grow_with_the_video() -> None:
    def peak(num_scenes: int) -> int:
        scenes = (scene(*range(10), shape=(120, 160)) for _ in range(num_scenes))
        tracemalloc.start()
        for _ in time_lapse(scenes, size_px=160, hold_frames=3):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # loads fonts
    assert peak(50) < 1.2 * peak(5)
