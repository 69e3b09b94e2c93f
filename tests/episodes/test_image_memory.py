"""Images that would take far more memory than their file are refused before anything is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import StoreError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Episode
from dovetail.episodes import _image_memory
from dovetail.episodes._image_memory import FREE_BYTES, MAX_EXPANSION, allocate_images
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import ROBOT, MemoryLog, make_lerobot_episode

NUM_STEPS = 45


def black_episode(*shape: int) -> Episode:
    """All rows share one black frame, so the file has about a kilobyte."""
    small = {key: spec for key, spec in ROBOT.observation.items() if not spec.is_image}
    episode = make_lerobot_episode(0, num_steps=NUM_STEPS, robot=replace(ROBOT, observation=small))
    (segment,) = episode.segments
    robot = replace(ROBOT, observation={**small, "front": ArraySpec(shape=shape, dtype="uint8")})
    columns = {
        **segment.columns,
        "observation/front": np.broadcast_to(np.zeros(shape, np.uint8), (NUM_STEPS, *shape)),
    }
    last = segment.last_observation
    assert last is not None
    last = replace(last, values={**last.values, "front": np.zeros(shape, np.uint8)})
    segment = replace(segment, columns=columns, last_observation=last)
    return replace(episode, robot=robot, segments=(segment,))


@contextmanager
def peak_below_100_mb() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_episode_of_one_black_frame_is_refused_and_read_frame_by_frame(tmp_path: Path) -> None:
    log, episode = EpisodeLog(tmp_path), black_episode(1080, 1920, 3)
    log.commit(episode)
    refusal = r"46 images in \d+ bytes would take 272 MB .* No camera records such images"
    with peak_below_100_mb(), pytest.raises(StoreError, match=refusal):
        log.load(episode.id)
    with peak_below_100_mb(), pytest.raises(StoreError, match=refusal):
        log.images(episode.id, "front")
    with peak_below_100_mb():
        assert sum(1 for _ in log.frames(episode.id, "front")) == NUM_STEPS + 1
        assert "observation/front" not in log.load(episode.id, images=False).segments[0].columns


def test_dataset_of_one_black_frame_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image_memory, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(_image_memory, "MAX_EXPANSION", 100)
    log = EpisodeLog(tmp_path / "log")
    log.commit(black_episode(128, 128, 3))
    export(log, tmp_path / "out")
    with pytest.raises(StoreError, match=r"46 images in \d+ bytes would take 2 MB"):
        open_dataset(tmp_path / "out").episode(0)


def test_memory_that_the_machine_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    100 kB\n")
    monkeypatch.setattr(_image_memory, "_MEMORY", tmp_path / "meminfo")
    with pytest.raises(StoreError, match=r"10 images need 1 MB of memory, but 0 MB are available"):
        allocate_images(10, (200, 200, 3), "uint8", num_stored_bytes=10**6, name="video")
    assert allocate_images(1, (100, 100, 3), "uint8", num_stored_bytes=1, name="video").shape == (1, 100, 100, 3)


def test_limit_grows_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image_memory, "_available_bytes", lambda: None)
    num_stored_bytes = FREE_BYTES // MAX_EXPANSION * 2
    allowed = num_stored_bytes * MAX_EXPANSION
    assert (
        allocate_images(1, (allowed,), "uint8", num_stored_bytes=num_stored_bytes, name="video").nbytes == allowed
    )
    with pytest.raises(StoreError, match="refused"):
        allocate_images(1, (allowed + 1,), "uint8", num_stored_bytes=num_stored_bytes, name="video")


def test_real_images_are_loaded(tmp_path: Path) -> None:
    log, stored = EpisodeLog(tmp_path), MemoryLog([0])
    episode = stored.episode(stored.ids()[0])
    log.commit(episode)
    assert log.load(episode.id).segments[0].columns["observation/camera/front"].shape == (6, 48, 64, 3)
