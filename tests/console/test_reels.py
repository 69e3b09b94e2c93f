"""Frames for a browser: each block what the log has, in order, whoever asks first."""

import io
import struct
import threading

import numpy as np
import pytest
from PIL import Image

from dovetail.console.reels import BLOCK, Reels, as_jpeg
from dovetail.core.errors import StoreError


def grey(value, shape=(16, 24, 3)):
    return np.full(shape, value, np.uint8)


def unpacked(block):
    (count,) = struct.unpack_from("<I", block)
    lengths = struct.unpack_from(f"<{count}I", block, 4)
    place, frames = 4 + 4 * count, []
    for length in lengths:
        frames.append(block[place : place + length] if length else frames[-1])
        place += length
    assert place == len(block)
    return frames, lengths


def value(jpeg):
    return float(np.asarray(Image.open(io.BytesIO(jpeg))).mean())


@pytest.fixture
def reels():
    made = []

    def make(frames, **options):
        made.append(Reels(frames, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_blocks_hold_the_frames_in_order_and_repeated_ones_once(reels):
    pictures = [grey(2 * number) for number in range(BLOCK + 5)]
    slow = [pictures[number // 2] for number in range(2 * len(pictures))]  # a camera at half the rate
    library = reels(lambda episode, camera: iter(slow))
    for block in (2, 0, 1):
        frames, lengths = unpacked(library.block("e", "front", block))
        expected = [float(frame.mean()) for frame in slow[block * BLOCK : (block + 1) * BLOCK]]
        assert [value(frame) for frame in frames] == pytest.approx(expected, abs=1.5)
        assert [length > 0 for length in lengths] == [number % 2 == 0 for number in range(len(frames))]
    assert unpacked(library.block("e", "front", 9))[0] == []


def test_the_first_block_is_there_before_the_last_frame_is_made(reels):
    go_on = threading.Event()

    def frames(episode, camera):
        for number in range(BLOCK):
            yield grey(number)
        go_on.wait(10)
        yield grey(200)

    library = reels(frames)
    assert len(unpacked(library.block("e", "front", 0))[0]) == BLOCK
    go_on.set()
    assert value(unpacked(library.block("e", "front", 1))[0][0]) == pytest.approx(200, abs=1.5)


def test_what_cannot_be_decoded_is_told_and_asked_for_again(reels):
    tries = []

    def frames(episode, camera):
        tries.append(camera)
        yield grey(1)
        if len(tries) == 1:
            raise StoreError("frames-front.mkv is damaged")

    library = reels(frames)
    with pytest.raises(StoreError, match="mkv is damaged"):
        library.block("e", "front", 0)
    assert len(unpacked(library.block("e", "front", 0))[0]) == 1


def test_old_reels_make_room_and_come_back(reels):
    made = []

    def frames(episode, camera):
        made.append(episode)
        return (np.random.default_rng(number).integers(0, 256, (64, 64, 3), np.uint8) for number in range(BLOCK))

    library = reels(frames, budget_bytes=1)
    for episode in ("a", "b", "a"):
        assert len(unpacked(library.block(episode, "front", 0))[0]) == BLOCK
    assert made == ["a", "b", "a"]


def test_depth_and_large_pictures_become_something_a_browser_shows():
    depth = np.linspace(500, 3000, 48, dtype=np.uint16).reshape(6, 8, 1)
    shown = np.asarray(Image.open(io.BytesIO(as_jpeg(depth))))
    assert shown.shape == (6, 8) and shown[0, 0] < 20 and shown[-1, -1] > 235
    assert Image.open(io.BytesIO(as_jpeg(grey(9, (1200, 2000, 3))))).size == (512, 307)
