"""Images in the log: choice of the codec, entries in the manifest, and streaming of frames."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import ConfigError, StoreError, UsageError
from dovetail.core.types import Episode
from dovetail.episodes import _frames
from dovetail.episodes.images import ImageCodec
from dovetail.episodes.log import EpisodeLog
from support.small_episodes import smooth

Make = Callable[..., Episode]
CAMERA = "camera/wrist"


@pytest.mark.parametrize(
    ("codec", "shape", "dtype", "chosen"),
    [
        (ImageCodec(), (128, 128, 3), "uint8", "ffv1"),
        (ImageCodec(), (128, 129, 3), "uint8", "h264"),
        (ImageCodec(lossless_up_to_px=640), (480, 640, 3), "uint8", "ffv1"),
        (ImageCodec(name="h264"), (8, 8, 3), "uint8", "h264"),
        (ImageCodec(name="av1"), (8, 8, 1), "uint8", "av1"),
        (ImageCodec(name="lossless"), (480, 640, 3), "uint8", "ffv1"),
        (ImageCodec(name="h264"), (480, 640, 1), "uint16", "ffv1"),
    ],
)
def test_codec_choice_by_size_and_dtype(
    codec: ImageCodec, shape: tuple[int, ...], dtype: str, chosen: str
) -> None:
    assert codec.choose(shape=shape, dtype=dtype) == chosen


def test_invalid_codec_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no image codec 'h265'. Did you mean 'h264'"):
        ImageCodec(name="h265")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"crf is 60, but h264 accepts 0 \(best\) to 51"):
        ImageCodec(crf=60)
    assert ImageCodec(name="av1", crf=60).quality == 60


@pytest.mark.parametrize("name", ["h264", "av1"])
def test_lossy_images_have_psnr_and_decode_identically(tmp_path: Path, make_episode: Make, name: str) -> None:
    pictures = smooth(7, 97, 131)
    episode = make_episode(num_steps=13, pictures=pictures, cuts=(4, 9))
    EpisodeLog(tmp_path, images=ImageCodec(name=name)).commit(episode)
    log = EpisodeLog(tmp_path)  # reading does not ask how new ones are written
    info = log.manifest("e1").images[CAMERA]
    assert (info.codec, info.num_frames, info.shape, info.dtype) == (name, 7, (97, 131, 3), "uint8")
    assert info.raw_bytes == pictures.nbytes
    assert info.num_bytes == (tmp_path / "e1" / "frames-camera%2Fwrist.mkv").stat().st_size < pictures.nbytes / 10
    loaded = log.load("e1")
    seen = [*loaded.column(f"observation/{CAMERA}"), loaded.last_observation.values[CAMERA]]
    error = np.mean((pictures.astype(float) - np.stack(seen[::2])) ** 2)
    assert info.psnr_db == pytest.approx(10 * np.log10(255**2 / error), abs=0.01)
    assert info.psnr_db > 30
    again = log.load("e1")
    np.testing.assert_array_equal(loaded.column(f"observation/{CAMERA}"), again.column(f"observation/{CAMERA}"))
    np.testing.assert_array_equal(list(log.frames("e1", CAMERA)), seen)
    depth = log.manifest("e1").images["depth"]
    assert (depth.codec, depth.psnr_db) == ("ffv1", None)
    np.testing.assert_array_equal(loaded.column("observation/depth"), episode.column("observation/depth"))


def test_committing_lossy_episode_twice_is_harmless(tmp_path: Path, make_episode: Make) -> None:
    episode = make_episode(num_steps=4, pictures=smooth(5, 40, 40))
    EpisodeLog(tmp_path, images=ImageCodec(name="h264")).commit(episode)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "e1").iterdir()}
    EpisodeLog(tmp_path, images=ImageCodec(name="av1")).commit(episode)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "e1").iterdir()} == before
    other = smooth(5, 40, 40)
    other[2, 0, 0, 0] ^= 1  # less than the codec keeps
    with pytest.raises(StoreError, match="with different content"):
        EpisodeLog(tmp_path).commit(make_episode(num_steps=4, pictures=other))


def test_frames_yields_image_of_each_row(tmp_path: Path, make_episode: Make) -> None:
    episode = make_episode(num_steps=5)
    log = EpisodeLog(tmp_path)
    log.commit(episode)
    frames = list(log.frames("e1", CAMERA))
    np.testing.assert_array_equal(frames[:-1], episode.column(f"observation/{CAMERA}"))
    np.testing.assert_array_equal(frames[-1], episode.last_observation.values[CAMERA])
    with pytest.raises(ValueError, match="read-only"):
        frames[0][0] = 0  # two rows share it
    with pytest.raises(UsageError, match=r"no images of camera 'camera/wrest'. Did you mean 'camera/wrist'"):
        log.frames("e1", "camera/wrest")
    next(log.frames("e1", CAMERA))  # one may stop early


def test_frames_verifies_file_first(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    log.commit(make_episode())
    path = tmp_path / "e1" / "frames-depth.mkv"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"frames-depth\.mkv is damaged"):
        log.frames("e1", "depth")
    list(log.frames("e1", CAMERA))  # the other one is whole


def test_frames_streams_with_bounded_memory(tmp_path: Path, make_episode: Make) -> None:
    """Peak memory by tracemalloc: streaming holds a few frames, loading holds all frames once."""
    pictures = np.repeat(smooth(41, 60, 80), 4, axis=1)  # 240 x 80
    log = EpisodeLog(tmp_path)
    log.commit(make_episode(num_steps=80, pictures=pictures))
    frame = pictures[0].nbytes

    def peak(work: Callable[[], object]) -> int:
        tracemalloc.start()
        work()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(lambda: sum(1 for _ in log.frames("e1", CAMERA))) < 8 * frame
    assert peak(lambda: log.load("e1")) < 81 * frame * 1.25
    episode = make_episode(id="e2", num_steps=80, pictures=pictures, cuts=(20, 40, 60))
    assert peak(lambda: log.commit(episode)) < 16 * frame


@pytest.mark.parametrize("codec", ["av1", "h264", "lossless"])
def test_encoding_keeps_thread_priorities(tmp_path: Path, make_episode: Make, codec: str) -> None:
    """SVT-AV1 would make its own and the calling thread real-time threads of the highest priority, which disturbs
    them, neither a control loop nor anything that is started later would ever be let on."""

    def scheduling() -> set[tuple[int, int]]:
        tasks = [int(name) for name in os.listdir("/proc/self/task")]
        return {(os.sched_getscheduler(task), os.sched_getparam(task).sched_priority) for task in tasks}

    before, during = scheduling(), []
    episode = make_episode(num_steps=3)
    log = EpisodeLog(tmp_path / "log", images=ImageCodec(name=codec))
    write = _frames.start_encoding

    def spy(container: object) -> None:
        write(container)
        during.append(scheduling())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_frames, "start_encoding", spy)
        log.commit(episode)
    assert during
    assert all(found == before for found in (*during, scheduling()))


def test_ended_thread_does_not_stop_encoder(
    tmp_path: Path, make_episode: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may end between listing the threads and reading its priority."""
    short_lived = threading.Thread(target=lambda: None)
    short_lived.start()
    short_lived.join()
    for tid in (threading.get_native_id(), short_lived.native_id):
        (tmp_path / "task" / str(tid)).mkdir(parents=True)
    monkeypatch.setattr(_frames, "_TASKS", tmp_path / "task")
    EpisodeLog(tmp_path / "log").commit(make_episode(num_steps=3))
