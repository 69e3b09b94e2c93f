"""`dovetail compare`: figures and answer on the screen, raw numbers in a file, mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_compare_with_a_missing_run_is_refused(cli: Cli, finished: Path) -> None:
    assert "no run named 'dome' in runs. Did you mean 'done'?" in cli("compare", "done", "dome").line


def test_compare_into_a_missing_folder_is_refused_before_anything_moves(cli: Cli, finished: Path) -> None:
    assert "its folder does not exist" in cli("compare", "done", "done", "--json", "gone/result.json").line


def test_margin_outside_its_range_is_refused(cli: Cli, finished: Path) -> None:
    assert "--margin" in cli("compare", "done", "done", "--margin", "0").line
