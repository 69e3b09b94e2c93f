"""The examples of docs/gymnasium.md run, with small budgets, and print what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.robots.gym import GymRobotConfig
from dovetail.runs.assembly.gym_choice import choose
from support.docs_pages import commands, files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gymnasium.md").read_text()
RUNS = [line for line in commands(PAGE) if line.startswith("dovetail run --gym")]
EXAMPLES = [line for line in RUNS if ":" not in shlex.split(line)[3]][1:]
TINY = (
    "run.env_steps=60",
    "run.eval_episodes=2",
    "run.untrained_episodes=1",
    "run.eval_every_steps=null",
    "learner.start_after_steps=50",
    "algorithm.batch_size=8",
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_page_has_three_examples() -> None:
    assert [shlex.split(line)[3] for line in EXAMPLES] == ["Pendulum-v1", "FetchReach-v4", "FetchReachDense-v4"]


@pytest.mark.parametrize(
    "line", [EXAMPLES[0], *(pytest.param(line, marks=pytest.mark.extended) for line in EXAMPLES[1:])]
)
def test_example_runs_to_its_report(line: str) -> None:
    words = [word for word in shlex.split(line)[1:] if not word.startswith("run.env_steps")]
    assert main([*words, *TINY, "--quiet", "--name", "example"]) == 0
    assert Path("runs/example/report.json").exists()
    assert Path("runs/example/before_after.mp4").exists() == ("render_key" in line)


def test_printed_choices_are_those_of_the_page() -> None:
    (shown,) = re.findall(r"^Pendulum-v1: chosen.*?(?=^```)", PAGE, re.MULTILINE | re.DOTALL)
    choice = choose("Pendulum-v1")
    assert choice.lines(load([choice.source], ["run.env_steps=10000"])) == shown.strip("\n").split("\n")


@pytest.mark.extended
def test_own_environment_of_the_page_is_checked_learned_resumed_and_evaluated() -> None:
    """By the installed script, whose search path has no current folder."""
    Path("point_env.py").write_text(files(PAGE)["point_env.py"])
    doctor, run, evaluate = (shlex.split(line)[1:] for line in commands(PAGE) if "point" in line)
    _call(*doctor)
    _call(*run, *TINY, "--quiet")
    _call("run", "--resume", "point", "run.env_steps=80", "--quiet")
    _call(*evaluate, "--episodes", "1")
    shutil.copytree("runs/point", "runs/copied")
    assert "or was copied, and its config names the code 'point_env:PointReach-v0'" in _call(
        "eval", "copied", rc=2
    )


def _call(*words: str, rc: int = 0) -> str:
    script = Path(sys.executable).with_name("dovetail")
    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stderr
    return done.stderr


@pytest.mark.extended
def test_config_file_of_the_page_runs() -> None:
    Path("reach.yaml").write_text(files(PAGE)["reach.yaml"])
    assert main(["run", "reach.yaml", *TINY, "--quiet", "--name", "reach"]) == 0


def test_table_has_every_setting_with_its_default() -> None:
    table = PAGE.partition("## Settings of")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    assert set(rows) == set(GymRobotConfig.model_fields)
    for name in ("control_hz", "max_steps", "success_key", "success_ends", "terminated_is_success", "render_key"):
        default = GymRobotConfig.model_fields[name].default
        written = {None: "null", True: "true", False: "false"}.get(default, f"{default:g}" if default else "")
        assert rows[name].strip("`") == written
