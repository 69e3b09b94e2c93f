"""The video of an export on a disk that becomes full: an error, and no file stays open."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from dovetail.core.errors import StoreError
from dovetail.episodes.lerobot._video import VideoWriter, read_frames

NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Writes beyond a size fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def is_open(path: Path) -> bool:
    names = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{entry}"))
    return any(name.startswith(str(path)) for name in names)


# 0 and 40 bytes: no header fits. 20,000 bytes: some frames fit. One frame is about 6,000 bytes.
@pytest.mark.parametrize("num_bytes", [0, 40, 20_000])
@pytest.mark.parametrize("num_frames", [0, 1, 20])
def test_no_file_stays_open_after_a_failed_write(tmp_path: Path, num_bytes: int, num_frames: int) -> None:
    path = tmp_path / "video.mp4"
    writer = VideoWriter(path, size=(64, 64), fps=10, codec="h264")
    errors: list[BaseException] = []  # keeps every object alive that the errors refer to
    with largest_file(num_bytes):
        try:
            for _ in range(num_frames):
                writer.add(NOISE)
        except (OSError, StoreError) as error:
            errors.append(error)
        try:
            writer.close()
        except (OSError, StoreError) as error:
            errors.append(error)
    assert not is_open(path)
    assert errors or (num_bytes == 20_000 and num_frames < 20)
    assert writer.num_frames <= num_frames


def test_no_file_stays_open_if_the_header_cannot_be_written(tmp_path: Path) -> None:
    """PyAV does not close a file that it opened itself if its header fails."""
    path = tmp_path / "video.mp4"
    with largest_file(0), pytest.raises(OSError, match="File too large") as raised:
        VideoWriter(path, size=(64, 64), fps=10, codec="h264").close()
    assert raised.value is not None  # the error keeps the container alive
    assert not is_open(path)


def test_no_file_stays_open_if_the_encoder_refuses_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    with pytest.raises(av.FFmpegError) as raised:
        VideoWriter(path, size=(0, 0), fps=10, codec="h264")
    assert raised.value is not None
    assert not is_open(path)


def test_written_frames_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    gray = [np.full((64, 64, 3), 20 * index, np.uint8) for index in range(5)]
    writer = VideoWriter(path, size=(64, 64), fps=10, codec="h264")
    for frame in gray:
        writer.add(frame)
    writer.close()
    writer.close()  # does nothing
    assert not is_open(path)
    found = list(read_frames(path, np.arange(5) / 10, fps=10.0))
    assert [round(float(frame.mean()) / 20) for frame in found] == [0, 1, 2, 3, 4]
