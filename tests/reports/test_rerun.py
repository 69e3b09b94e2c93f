"""Recordings for Rerun, read back with Rerun."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rerun as rr

from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Labels, Observation, Segment
from dovetail.episodes.log import EpisodeLog
from dovetail.reports.rerun import open_viewer, write_rrd
from support.made_runs import made_episode

NUM_STEPS = 8
ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={
        "state": ArraySpec(shape=(3,), names=("x", "y", "z")),
        "camera/wrist": ArraySpec(shape=(9, 12, 3), dtype="uint8"),
        "depth": ArraySpec(shape=(6, 8, 1), dtype="uint16"),
        "large": ArraySpec(shape=(160, 200, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(2,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> EpisodeLog:
    """A camera at half the control rate, one at the full rate, constant depth; an operator from step 3 to 5."""
    rng = np.random.default_rng(0)
    ticks = np.arange(NUM_STEPS + 1)
    images = {
        "camera/wrist": rng.integers(0, 256, (NUM_STEPS + 1, 9, 12, 3), np.uint8)[ticks // 2],
        "large": rng.integers(0, 256, (NUM_STEPS + 1, 160, 200, 3), np.uint8),
        "depth": np.full((NUM_STEPS + 1, 6, 8, 1), 1234, np.uint16),
    }
    columns: dict[str, Any] = {
        "time_ns": 7_000_000_000 + ticks[:-1] * 100_000_000,
        "observation/state": rng.normal(size=(NUM_STEPS, 3)).astype(np.float32),
        "proposed": rng.normal(size=(NUM_STEPS, 2)).astype(np.float32),
        "executed": rng.normal(size=(NUM_STEPS, 2)).astype(np.float32),
        "source": np.isin(ticks[:-1], (3, 4, 5)).astype(np.uint8),
        "policy_version": np.full(NUM_STEPS, 4),
        "chunk_id": ticks[:-1],
        "chunk_index": np.zeros(NUM_STEPS, np.int64),
        "reward/reach": np.linspace(0, 1, NUM_STEPS, dtype=np.float32),
        "metric/distance": np.linspace(1, 0, NUM_STEPS, dtype=np.float32),
        "extra/sim_fixtures": np.zeros((NUM_STEPS, 2, 7)),
        **{f"observation/{key}": frames[:-1] for key, frames in images.items()},
    }
    last = Observation(
        time_ns=7_000_000_000 + NUM_STEPS * 100_000_000,
        values={"state": np.zeros(3, np.float32), **{key: frames[-1] for key, frames in images.items()}},
    )
    segment = Segment(episode_id="e1", first=0, final=True, columns=columns, last_observation=last)
    episode = dataclasses.replace(made_episode("e1", robot=ROBOT), segments=(segment,))
    found = EpisodeLog(tmp_path_factory.mktemp("rerun") / "episodes")
    found.commit(episode)
    return found


def label() -> Labels:
    rewards = np.eye(NUM_STEPS, dtype=np.float32)[-1]
    return Labels(
        episode_id="e1",
        rewards=rewards,
        discounts=1 - rewards,
        success=True,
        confidence=1.0,
        labeler="outcome",
        version="1",
    )


def chunks(path: Path) -> dict[str, list[Any]]:
    """The non-static chunks of a recording by entity."""
    found: dict[str, list[Any]] = {}
    for chunk in rr.chunk.RrdReader(str(path)).stream():
        if not chunk.is_static:
            assert sorted(chunk.timeline_names) == ["step", "time"]
            found.setdefault(chunk.entity_path, []).append(chunk)
    return found


def column(chunk: Any, name: str) -> Any:
    batch = chunk.to_record_batch()
    (found,) = [each for each in batch.schema.names if each.endswith(name)]
    return batch.column(found)


def test_recording_is_read_back_by_rerun(log: EpisodeLog, tmp_path: Path) -> None:
    path = tmp_path / "new" / "e1.rrd"
    assert write_rrd(path, log, "e1", label=label()) == NUM_STEPS
    assert [each.name for each in path.parent.iterdir()] == ["e1.rrd"]
    found = chunks(path)
    rows = {entity: sum(chunk.num_rows for chunk in each) for entity, each in found.items()}
    assert rows == {
        "/action/executed": NUM_STEPS,
        "/action/proposed": NUM_STEPS,
        "/observation/state": NUM_STEPS,
        "/reward/reach": NUM_STEPS,
        "/metric/distance": NUM_STEPS,
        "/extra/sim_fixtures": NUM_STEPS,
        "/policy_version": NUM_STEPS,
        "/chunk_id": NUM_STEPS,
        "/chunk_index": NUM_STEPS,
        "/label/rewards": NUM_STEPS,
        "/source": 3,  # policy, human, policy
        "/camera/camera/wrist": NUM_STEPS // 2 + 1,  # each image once
        "/camera/large": NUM_STEPS + 1,
        "/camera/depth": 1,
    }
    episode = log.load("e1", images=False)
    (executed,) = found["/action/executed"]
    np.testing.assert_array_equal(column(executed, "Scalars:scalars").to_pylist(), episode.column("executed"))
    assert column(executed, "step").to_pylist() == list(range(NUM_STEPS))
    seconds = [each.total_seconds() for each in column(executed, "time").to_pylist()]
    np.testing.assert_allclose(seconds, np.arange(NUM_STEPS) / 10)
    (source,) = found["/source"]
    assert column(source, "StateChange:state").to_pylist() == [["policy"], ["human"], ["policy"]]
    assert column(source, "step").to_pylist() == [0, 3, 6]
    wrist = [row for chunk in found["/camera/camera/wrist"] for row in column(chunk, "Image:buffer").to_pylist()]
    seen = list(log.frames("e1", "camera/wrist"))[::2]
    assert [bytes(row[0]) for row in wrist] == [frame.tobytes() for frame in seen]  # small images are exact


def test_rerun_verifies_the_recording(log: EpisodeLog, tmp_path: Path) -> None:
    path = tmp_path / "e1.rrd"
    write_rrd(path, log, "e1")
    done = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "/label/rewards" not in chunks(path)


def test_unwritable_path_is_a_usage_error(log: EpisodeLog, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*/file/e1.rrd: .*; choose another --save"):
        write_rrd(tmp_path / "file" / "e1.rrd", log, "e1")


def test_missing_package_or_display_is_a_usage_error(
    log: EpisodeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(UsageError, match=r"needs a display: write a file with --save"):
        open_viewer(log, "e1")
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(UsageError, match=r"pip install dovetail\[rerun\]"):
        write_rrd(tmp_path / "e1.rrd", log, "e1")
