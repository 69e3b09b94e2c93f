from __future__ import annotations

import numpy as np
import pytest

from dovetail.episodes import _frames


@pytest.mark.parametrize("size", [(4, 4), (5, 7), (240, 320), (4, 700), (700, 4), (101, 33)])
@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 3), ("uint8", 1), ("uint16", 1)])
def test_lossless_and_repeatable(size: tuple[int, int], dtype: str, channels: int) -> None:
    frames = np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, (3, *size, channels)).astype(dtype)
    assert _frames.is_image(frames)
    data = _frames.encode(frames)
    assert data == _frames.encode(frames)
    decoded = _frames.decode(data, num_frames=3, frame_shape=(*size, channels), dtype=dtype)
    np.testing.assert_array_equal(decoded, frames)


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((3, 8, 1, 3), np.uint8),
        np.zeros((3, 8, 8, 4), np.uint8),
        np.zeros((3, 8, 8, 3), np.float32),
        np.zeros(3),
    ],
)
def test_the_rest_is_kept_as_numbers(column: np.ndarray) -> None:
    assert not _frames.is_image(column)


def test_deduplicate_by_hand() -> None:
    a, b = np.zeros((4, 4, 1), np.uint8), np.ones((4, 4, 1), np.uint8)
    distinct, index = _frames.deduplicate(np.stack([a, a, b, a, a]))
    assert index.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_array_equal(distinct[index], np.stack([a, a, b, a, a]))
