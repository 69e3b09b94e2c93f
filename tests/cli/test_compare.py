"""`dovetail compare`: figures and answer on the screen, raw numbers in a file, mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.api.comparison import Comparison
from dovetail.cli._compare import answer_line
from dovetail.core.figures import EpisodeScore
from support.command_line import Cli


def test_compare_prints_figures_of_both_and_the_answer(cli: Cli, finished: Path) -> None:
    result = cli("compare", "done", "runs/done/checkpoints/last", "--episodes", "2", "--json", "result.json")
    assert result.code == 0, result.err
    assert "A  runs/done, weights version" in result.out
    assert "B  runs/done, checkpoint" in result.out
    assert (
        "cannot tell whether B is worse than A by more than 5 points (2 pairs of episodes on the same resets"
        in result.out
    )
    written = json.loads(Path("result.json").read_text("utf-8"))
    assert (written["answer"], written["num_pairs"], len(written["pairs"])) == ("cannot tell", 2, 2)
    assert written["a"]["episodes"] == written["b"]["episodes"] == 2


@pytest.mark.parametrize(("a", "better"), [(False, True), (True, False)])
def test_answer_says_better_if_the_whole_difference_is_above_zero(a: bool, better: bool) -> None:
    pair = tuple(EpisodeScore(success=success, duration_s=1.0) for success in (a, True))
    result = Comparison(
        names=("a", "b"), scores=(pair,) * 190, margin_percent=5.0, max_pairs=200, seed=0, same_resets=True
    )
    line = answer_line(result)
    assert line.startswith("B is not worse than A by more than 5 points")
    assert (", and better: B minus A is between +" in line) == better


def test_compare_with_a_missing_run_is_refused(cli: Cli, finished: Path) -> None:
    assert "no run named 'dome' in runs. Did you mean 'done'?" in cli("compare", "done", "dome").line


def test_compare_into_a_missing_folder_is_refused_before_anything_moves(cli: Cli, finished: Path) -> None:
    assert "its folder does not exist" in cli("compare", "done", "done", "--json", "gone/result.json").line


def test_margin_outside_its_range_is_refused(cli: Cli, finished: Path) -> None:
    assert "--margin" in cli("compare", "done", "done", "--margin", "0").line
