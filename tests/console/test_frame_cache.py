"""Blocks of frames: the same frames as in the log, in order, for any order of requests."""

import io
import struct
import threading

import numpy as np
import pytest
from PIL import Image

from dovetail.console.frame_cache import BLOCK, FrameCache, to_jpeg
from dovetail.core.errors import StoreError


def gray(value, shape=(16, 24, 3)):
    return np.full(shape, value, np.uint8)


def unpack(block):
    (count,) = struct.unpack_from("<I", block)
    lengths = struct.unpack_from(f"<{count}I", block, 4)
    offset, frames = 4 + 4 * count, []
    for length in lengths:
        frames.append(block[offset : offset + length] if length else frames[-1])
        offset += length
    assert offset == len(block)
    return frames, lengths


def value(jpeg):
    return float(np.asarray(Image.open(io.BytesIO(jpeg))).mean())


@pytest.fixture
def make_cache():
    caches = []

    def make(frames, **options):
        caches.append(FrameCache(frames, **options))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()


def test_blocks_have_the_frames_in_order_and_repeated_frames_once(make_cache):
    images = [gray(2 * number) for number in range(BLOCK + 5)]
    slow = [images[number // 2] for number in range(2 * len(images))]  # a camera at half the rate
    cache = make_cache(lambda episode, camera: iter(slow))
    for block in (2, 0, 1):
        frames, lengths = unpack(cache.block("e", "front", block))
        expected = [float(frame.mean()) for frame in slow[block * BLOCK : (block + 1) * BLOCK]]
        assert [value(frame) for frame in frames] == pytest.approx(expected, abs=1.5)
        assert [length > 0 for length in lengths] == [number % 2 == 0 for number in range(len(frames))]
    assert unpack(cache.block("e", "front", 9))[0] == []


def test_first_block_is_available_before_the_last_frame(make_cache):
    may_continue = threading.Event()

    def frames(episode, camera):
        for number in range(BLOCK):
            yield gray(number)
        may_continue.wait(10)
        yield gray(200)

    cache = make_cache(frames)
    assert len(unpack(cache.block("e", "front", 0))[0]) == BLOCK
    may_continue.set()
    assert value(unpack(cache.block("e", "front", 1))[0][0]) == pytest.approx(200, abs=1.5)


def test_decoding_error_is_raised_and_tried_again(make_cache):
    attempts = []

    def frames(episode, camera):
        attempts.append(camera)
        yield gray(1)
        if len(attempts) == 1:
            raise StoreError("frames-front.mkv is damaged")

    cache = make_cache(frames)
    with pytest.raises(StoreError, match="mkv is damaged"):
        cache.block("e", "front", 0)
    assert len(unpack(cache.block("e", "front", 0))[0]) == 1


def test_evicted_camera_is_decoded_again(make_cache):
    decoded = []

    def frames(episode, camera):
        decoded.append(episode)
        return (np.random.default_rng(number).integers(0, 256, (64, 64, 3), np.uint8) for number in range(BLOCK))

    cache = make_cache(frames, budget_bytes=1)
    for episode in ("a", "b", "a"):
        assert len(unpack(cache.block(episode, "front", 0))[0]) == BLOCK
    assert decoded == ["a", "b", "a"]


def test_depth_and_large_images_become_small_jpegs():
    depth = np.linspace(500, 3000, 48, dtype=np.uint16).reshape(6, 8, 1)
    shown = np.asarray(Image.open(io.BytesIO(to_jpeg(depth))))
    assert shown.shape == (6, 8) and shown[0, 0] < 20 and shown[-1, -1] > 235
    assert Image.open(io.BytesIO(to_jpeg(gray(9, (1200, 2000, 3))))).size == (512, 307)
