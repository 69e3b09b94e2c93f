"""Images that would take far more memory than their file are refused before anything is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.core.errors import StoreError
from dovetail.core.types import Episode
from dovetail.episodes import _image_memory
from dovetail.episodes._image_memory import FREE_BYTES, MAX_EXPANSION, allocate_images
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import MemoryLog, still_episode

NUM_STEPS = 45


def black_episode(*shape: int) -> Episode:
    return still_episode(*shape, num_steps=NUM_STEPS)


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


def test_dataset_of_a_still_scene_is_imported_frame_by_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 images of 6 MB in a video of a few kilobytes: one of them is in memory."""
    log, episode = EpisodeLog(tmp_path / "log"), black_episode(1080, 1920, 3)
    log.commit(episode)
    export(log, tmp_path / "out")
    dataset, imported = open_dataset(tmp_path / "out"), EpisodeLog(tmp_path / "imported")
    with peak_below_100_mb():
        streams = dataset.image_streams(0)
        without = dataset.episode(0, images=False)
        check_values(without, None, name="episode 0", streams=streams)
        imported.commit(without, streams=streams)
    assert imported.manifest(episode.id).images["front"].num_frames == 1
    assert sum(1 for _ in imported.frames(episode.id, "front")) == NUM_STEPS + 1


def test_streams_give_the_same_episode_as_arrays(tmp_path: Path) -> None:
    stored = MemoryLog([0])
    export(stored, tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    with_arrays, with_streams = EpisodeLog(tmp_path / "a"), EpisodeLog(tmp_path / "s")
    with_arrays.commit(dataset.episode(0))
    with_streams.commit(dataset.episode(0, images=False), streams=dataset.image_streams(0))
    with_streams.commit(dataset.episode(0))  # refused if the content differed
    (name,) = with_streams.ids()
    for file in with_arrays._folder.joinpath(name).iterdir():
        assert file.read_bytes() == with_streams._folder.joinpath(name, file.name).read_bytes()


def test_stream_of_another_length_is_refused(tmp_path: Path) -> None:
    export(MemoryLog([0]), tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    streams = dataset.image_streams(0)
    key, stream = next(iter(streams.items()))
    wrong = {**streams, key: replace(stream, shape=(3, *stream.shape[1:]))}
    with pytest.raises(StoreError, match=f"camera '{key}' should have 7 images"):
        EpisodeLog(tmp_path / "log").commit(dataset.episode(0, images=False), streams=wrong)
