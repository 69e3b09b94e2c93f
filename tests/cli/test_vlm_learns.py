"""push_cube learns from a model's labels, of which one in ten is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main
from support.oracle_vlm_server import oracle_vlm_server


def success(runs: Path, name: str, *settings: str) -> float:
    """Run the recipe and return the final success rate, by the simulator's verdict."""
    shown = ("run.untrained_episodes=0", "run.video_episodes=0")
    code = main(
        ["run", "push-cube", "run.seed=0", *shown, *settings, "--name", name, "--runs-dir", str(runs), "-q"]
    )
    assert code == 0
    return float(json.loads((runs / name / "evaluations" / "after.json").read_text())["rate"])


@pytest.mark.slow
def test_push_cube_learns_from_a_model_that_errs_one_time_in_ten(tmp_path: Path) -> None:
    """The only rewards are the verdicts of a server on two frames per episode: at least 90 % of the success rate that
    the same recipe and seed reach with the true outcome."""
    truth = success(tmp_path, "truth")
    with oracle_vlm_server(tmp_path / "judged").running() as server:
        vlm = f"{{type: vlm, url: '{server.url}', model: stand-in, num_frames: 2}}"
        judged = success(tmp_path, "judged", f"labels=[{vlm}]", "robot.images=[front]")
        wrong = server.answer.num_wrong / server.num_questions  # type: ignore[attr-defined]
    assert server.num_questions > 50
    assert 0.04 < wrong < 0.18
    assert judged >= 0.9 * truth
