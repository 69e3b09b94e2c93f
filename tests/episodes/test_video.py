from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.episodes.video import Clip, side_by_side, write_video


def frames(count: int, *, height: int = 64, width: int = 64, value: int = 0) -> Iterator[Array]:
    for number in range(count):
        yield np.full((height, width, 3), value + number, np.uint8)


def read(path: Path) -> tuple[list[Array], float]:
    with av.open(str(path), "r") as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)], float(
            stream.average_rate or 0
        )


@pytest.mark.parametrize(("height", "width"), [(64, 48), (33, 47)])
def test_writes_h264_of_even_size(tmp_path: Path, height: int, width: int) -> None:
    path = tmp_path / "a.mp4"
    assert write_video(path, frames(7, height=height, width=width, value=100), fps=10) == 7
    pictures, fps = read(path)
    assert len(pictures) == 7
    assert fps == 10
    assert pictures[0].shape == (height + height % 2, width + width % 2, 3)
    assert abs(pictures[3].astype(int) - 103).max() <= 3
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no frames"),
        ([np.zeros((8, 8, 3))], "float64"),
        ([np.zeros((n, 8, 3), np.uint8) for n in (8, 10)], "frame 1"),
    ],
)
def test_invalid_frames_leave_no_file(tmp_path: Path, bad: list[Array], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_video(tmp_path / "a.mp4", bad, fps=10)
    assert list(tmp_path.iterdir()) == []


def test_side_by_side_freezes_with_colored_border() -> None:
    before = [Clip(frames=frames(5), success=False), Clip(frames=frames(2, height=32), success=True)]
    after = [Clip(frames=frames(3), success=True, caption="episode 9"), Clip(frames=iter(()), success=False)]
    pictures = list(side_by_side(before, after, fps=10, hold_s=0.5, tile_px=64))
    assert len(pictures) == 5 + 1 + 5  # the longest clip, its freezing, the hold
    assert len({picture.shape for picture in pictures}) == 1

    def count(picture: Array, color: tuple[int, int, int]) -> int:
        return int((picture == color).all(axis=-1).sum())

    green, red = (52, 199, 123), (236, 84, 84)
    assert count(pictures[0], green) == 0
    one = count(pictures[2], green)
    assert one > 500
    assert count(pictures[4], red) == pytest.approx(one, rel=0.02)  # of rounded corners a pixel may be shared
    assert count(pictures[-1], green) == pytest.approx(2 * one, rel=0.02)
    assert count(pictures[-1], red) == pytest.approx(2 * one, rel=0.02)
    assert pictures[0] is not pictures[1]


def test_side_by_side_without_clips_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one clip"):
        next(side_by_side([], [Clip(frames=(), success=True)]))
