"""The real `lerobot` package in a separate environment: it loads and trains on exports, and its datasets are imported.

`scripts/lerobot-env` makes the environment the first time, which takes minutes and the network; LEROBOT_ENV sets where
else one is.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array, Episode, Outcome, Purpose
from dovetail.episodes.lerobot import FileSizes, _commit, export, open_dataset
from dovetail.episodes.lerobot._video import as_rgb
from support import SUPPORT
from support.lerobot_episodes import MemoryLog, StreamingLog, psnr_db

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
SCRIPT = SUPPORT / "lerobot_package_script.py"
CAMERAS = {
    "camera/front": ("observation.images.camera_front", (48, 64)),
    "wrist": ("observation.images.wrist", (34, 42)),
}


@pytest.fixture(scope="session")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs one of the checks of `lerobot_package_script.py`; what it printed last is the answer."""
    environment = Path(os.environ.get("LEROBOT_ENV", REPOSITORY / ".venv-lerobot"))
    subprocess.run([REPOSITORY / "scripts" / "lerobot-env", environment], check=True)
    cache = tmp_path_factory.mktemp("huggingface")

    def run(check: str, *paths: Path) -> Any:
        done = subprocess.run(
            [environment / "bin" / "python", SCRIPT, check, *paths],
            env={**os.environ, "HF_HOME": str(cache), "OMP_NUM_THREADS": "1", "SVT_LOG": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def truth(episodes: list[Episode], path: Path) -> Path:
    """What a frame of the dataset must be, for every frame, worked out from the episodes alone."""

    def each(of: Any) -> Array:
        return np.concatenate([of(episode) for episode in episodes])

    def last(episode: Episode) -> Array:
        return np.arange(len(episode)) == len(episode) - 1

    def state(episode: Episode) -> Array:
        keys = ("joint_pos", "gripper", "ticks")
        columns = [episode.column(f"observation/{key}").reshape(len(episode), -1) for key in keys]
        return np.concatenate([column.astype(np.float32) for column in columns], axis=1)

    expected: dict[str, Array] = {
        "task": each(lambda e: [e.prompt] * len(e)),
        "value/observation.state": each(state),
        "value/action": each(lambda e: e.column("executed")),
        "value/timestamp": each(lambda e: (np.arange(len(e)) / 10).astype(np.float32)),
        "value/episode_index": np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
        "value/index": np.arange(sum(len(episode) for episode in episodes)),
        "value/next.done": each(last),
        "value/next.success": each(lambda e: last(e) & (e.outcome is Outcome.SUCCESS)),
        "value/complementary_info.is_intervention": each(lambda e: e.column("source") == 1),
        "value/complementary_info.time_ns": each(lambda e: e.column("time_ns")),
        "value/complementary_info.proposed": each(lambda e: e.column("proposed")),
        "value/complementary_info.policy_version": each(lambda e: e.column("policy_version")),
    }
    for key, (feature, size) in CAMERAS.items():
        frames = each(lambda e, key=key: e.column(f"observation/{key}"))
        expected[f"frames/{feature}"] = np.stack([as_rgb(frame, size) for frame in frames]).astype(np.float32)
    np.savez(path, **expected)
    return path


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_lerobot_reads_every_frame(tmp_path: Path, lerobot: Any, codec: str) -> None:
    log = StreamingLog(range(8), num_steps=9)
    episodes = [log.episode(id) for id in log.ids()]
    root = tmp_path / "out"
    for count in (3, 4, 8):  # files of three, of one and of four episodes
        export(log, root, ids=log.ids()[:count], codec=codec)
    found = lerobot("load", root, truth(episodes, tmp_path / "truth.npz"))
    assert (found["num_episodes"], found["num_frames"], found["chunks"]) == (8, 72, 72)
    assert min(found["psnr_db"].values()) > 30
    assert "observation.images.wrist" in found["stats"]


def test_lerobot_reads_old_dataset_after_killed_export(
    tmp_path: Path, lerobot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StreamingLog(range(4))
    root = tmp_path / "out"
    export(log, root, ids=log.ids()[:2])
    move = os.replace

    class KilledError(BaseException):
        pass

    def dying(source: Path, target: Path) -> None:
        if Path(target).name == "info.json":
            raise KilledError
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(_commit.os, "replace", dying)
        patch.setattr(_commit.Staging, "close", lambda _: None)
        with pytest.raises(KilledError):
            export(log, root)
    episodes = [log.episode(id) for id in log.ids()]
    found = lerobot("load", root, truth(episodes[:2], tmp_path / "old.npz"))
    assert found["num_episodes"] == 2
    export(log, root)
    found = lerobot("load", root, truth(episodes, tmp_path / "new.npz"))
    assert found["num_episodes"] == 4


class _Teacher(MemoryLog):
    """Demonstrations one can learn from: the action follows the state, and nothing is out of all proportion."""

    def episode(self, episode_id: str) -> Episode:
        episode = super().episode(episode_id)
        for segment in episode.segments:
            columns: dict[str, Array] = segment.columns  # type: ignore[assignment]
            columns["executed"] = np.tanh(columns["observation/joint_pos"][:, :2])
            columns["observation/ticks"] = np.arange(len(columns["executed"]))
        return episode


def test_lerobot_policy_trains_on_export(tmp_path: Path, lerobot: Any) -> None:
    export(_Teacher(range(8), num_steps=12), tmp_path / "out", sizes=FileSizes(data_mb=0.02))
    found = lerobot("train", tmp_path / "out")
    assert found["inputs"] == ["observation.images.camera_front", "observation.images.wrist", "observation.state"]
    assert found["outputs"] == ["action"], "no other column is taken for an action"
    losses = np.array(found["losses"])
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < 0.5 * losses[:5].mean()


def test_lerobot_and_dovetail_extend_same_dataset(tmp_path: Path, lerobot: Any) -> None:
    log = StreamingLog(range(3))
    root = tmp_path / "out"
    export(log, root, ids=log.ids()[:2])
    found = lerobot("resume", root)
    assert (found["before"], found["after"], found["task"]) == (2, 3, "by lerobot")
    report = export(log, root)
    assert report.exported == (log.ids()[2],)
    episodes = list(open_dataset(root).episodes())
    assert [episode.id for episode in episodes if episode.operator != "lerobot"] == log.ids()
    theirs = episodes[2]
    assert (theirs.prompt, theirs.purpose, len(theirs)) == ("by lerobot", Purpose.DEMO, 4)
    np.testing.assert_array_equal(theirs.column("executed")[:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(theirs.column("observation/joint_pos")[:, 0], [0, 1, 2, 3])
    assert abs(int(theirs.column("observation/wrist")[3].mean()) - 180) < 3
    assert (
        psnr_db(episodes[3].column("observation/wrist"), log.episode(log.ids()[2]).column("observation/wrist"))
        > 30
    )
    found = lerobot("resume", root)
    assert (found["before"], found["after"]) == (4, 5)


def test_dataset_recorded_by_lerobot_is_imported(tmp_path: Path, lerobot: Any) -> None:
    lerobot("create", tmp_path / "theirs", tmp_path / "truth.npz")
    with np.load(tmp_path / "truth.npz") as archive:
        expected = dict(archive)
    dataset = open_dataset(tmp_path / "theirs", task="stacking")
    assert not dataset.is_ours
    assert dataset.robot.name == "so101"
    assert dataset.robot.action == ArraySpec(shape=(2,), names=("x", "y"))
    assert dataset.robot.observation["matrix"] == ArraySpec(shape=(2, 2), dtype="float64")
    episodes = list(dataset.episodes())
    assert [len(episode) for episode in episodes] == [5, 6, 7]
    assert [episode.outcome for episode in episodes] == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.SUCCESS]
    for number, episode in enumerate(episodes):
        rows = expected["episode"] == number
        assert episode.prompt == str(expected["task"][rows][0])
        for column, name in (
            ("executed", "action"),
            ("observation/state", "observation.state"),
            ("observation/matrix", "observation.matrix"),
            ("observation/pic", "observation.images.pic"),
        ):
            np.testing.assert_array_equal(episode.column(column), expected[name][rows], err_msg=column)
        np.testing.assert_array_equal(episode.column("reward/lerobot"), expected["next.reward"][rows][:, 0])
        assert psnr_db(episode.column("observation/top"), expected["observation.images.top"][rows]) > 30
