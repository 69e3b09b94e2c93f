"""`dovetail episodes video`: one episode, and a time-lapse of many."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest

from dovetail.core.types import Outcome
from dovetail.reports.timelapse import COLORS
from dovetail.runs.folder import RunFolder
from support.command_line import Cli
from support.made_runs import made_episode, made_run

OUTCOMES = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ABORTED)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    episodes = (made_episode(f"e{n}", outcome=outcome, num_steps=16) for n, outcome in enumerate(OUTCOMES))
    return made_run(Path("runs/made"), *episodes)


def play(path: Path | str) -> tuple[list[np.ndarray], float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)], float(stream.average_rate)


def test_video_of_one_episode(cli: Cli, run: RunFolder) -> None:
    assert cli("episodes", "video", "made", "2").code == 0
    frames, fps = play("runs/made/videos/e1-front.mp4")
    assert (len(frames), fps, frames[0].shape) == (17, 10.0, (12, 16, 3))
    assert cli("episodes", "video", "made", "2", "--speed", "4", "-o", "fast.mp4").code == 0
    assert play("fast.mp4")[1] == 40.0


def test_time_lapse(cli: Cli, run: RunFolder) -> None:
    result = cli("episodes", "video", "made", "--merge", "--speed", "6", "--size", "160")
    assert result.code == 0
    assert result.out == "runs/made/videos/time-lapse-front.mp4: 4 episodes, 3 s at 6 times real time\n"
    frames, fps = play("runs/made/videos/time-lapse-front.mp4")
    assert fps == 30.0  # 60 steps per second: every second one
    each = 9 + 12  # every second of 17 frames, and 0.4 s of the last
    assert len(frames) == 4 * each
    for number, outcome in enumerate(OUTCOMES):
        shown = frames[number * each + 5]
        np.testing.assert_allclose(shown[1, 60].astype(int), COLORS[outcome], atol=40)


def test_time_lapse_with_filters(cli: Cli, run: RunFolder) -> None:
    assert "1 episodes" in cli("episodes", "video", "made", "--merge", "--outcome", "failure", "-o", "a.mp4").out
    assert "2 episodes" in cli("episodes", "video", "made", "--merge", "--limit", "2", "-o", "a.mp4").out


def test_damaged_episodes_are_left_out(cli: Cli, run: RunFolder) -> None:
    (run.episodes / "e0" / "frames-front.mkv").write_bytes(b"")
    (run.episodes / "e1" / "manifest.json").write_text("{}")
    result = cli("episodes", "video", "made", "--merge", "-o", "a.mp4")
    assert result.code == 0
    assert "a.mp4: 2 episodes" in result.out
    left_out = [line for line in result.out.splitlines() if line.startswith("left out: ")]
    assert ["e1/manifest.json" in left_out[0], "e0/frames-front.mkv" in left_out[1]] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--merge", "2"], "leave out '2'"),
        ([], "name one episode and no filters, or add --merge"),
        (["2", "--outcome", "failure"], "name one episode and no filters, or add --merge"),
        (["--merge", "--task", "nothing"], "none of the 4 episodes"),
        (["--merge", "--camera", "back"], "no images of camera 'back' (it has front, depth)"),
        (["--merge", "-o", "file/x.mp4"], "cannot write file/x.mp4"),
        (["--merge", "--speed", "0"], "--speed"),
    ],
)
def test_refusals(cli: Cli, run: RunFolder, arguments: list[str], message: str) -> None:
    Path("file").touch()
    result = cli("episodes", "video", "made", *arguments)
    assert message in result.line
    assert result.code == 2
    assert not list(Path(".").rglob("*.mp4"))


@pytest.mark.extended
def test_memory_does_not_grow_with_the_number_of_episodes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def peak(num_episodes: int) -> int:
        name = f"run{num_episodes}"
        made_run(Path("runs") / name, *(made_episode(f"e{n:03d}", num_steps=20) for n in range(num_episodes)))
        tracemalloc.start()
        assert cli("episodes", "video", name, "--merge", "--size", "64").code == 0
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert os.path.getsize(f"runs/{name}/videos/time-lapse-front.mp4")
        return most

    peak(1)  # imports
    few, many = peak(4), peak(40)
    # an episode's frames are 350 kB, of 36 more 12 MB; what the list of them takes came to 160 kB at times
    assert many < few + 350_000
