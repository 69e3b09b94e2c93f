"""Exit codes, tracebacks and help."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import __version__
from dovetail.config import load as loading
from dovetail.config.load import config_hash, load
from dovetail.config.trust import mark_trusted
from dovetail.runs.folder import RunFolder
from support.command_line import Cli

COMMANDS = (
    ["run"],
    ["collect"],
    ["eval"],
    ["compare"],
    ["deploy"],
    ["distill"],
    ["episodes"],
    ["episodes", "ls"],
    ["episodes", "show"],
    ["episodes", "video"],
    ["recipes"],
    ["plugins"],
    ["config"],
    ["config", "schema"],
    ["config", "show"],
    ["doctor"],
    ["bench"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help")
    assert re.search(rf"Examples?: dovetail {command[0]}", result.out)
    assert result.code == 0


def test_without_a_command_there_is_help(cli: Cli) -> None:
    assert "dovetail run peg-insertion" in cli().out
    assert cli("--version").out == f"dovetail {__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'mujoco', 'pydantic', 'av', 'gymnasium.envs.mujoco'}"
    code = f"import sys, dovetail.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_unexpected_error_is_one_line_and_debug_shows_the_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(loading, "recipes", broken)
    result = cli("recipes")
    assert result.line == "error: ValueError: two lines (run again with --debug for the traceback)\n"
    assert result.code == 1
    result = cli("recipes", "--debug")
    assert "Traceback" in result.err
    assert result.code == 1


def test_a_class_in_the_current_folder_is_a_plugin(cli: Cli, toy: str, tmp_path: Path) -> None:
    (tmp_path / "plugin_of_mine.py").write_text(
        "from dovetail.policies.gaussian_mlp import GaussianMLP\nclass Mine(GaussianMLP):\n    '''Mine.'''\n"
    )
    result = cli("config", "show", toy, "policy=plugin_of_mine:Mine")
    assert "type: plugin_of_mine:Mine" in result.out


def test_lists(cli: Cli, tmp_path: Path) -> None:
    assert "peg-insertion" in cli("recipes").out
    found = cli("plugins", "--kind", "task").out
    assert "peg_insertion" in found
    assert "gaussian_mlp" not in found
    out = tmp_path / "schema.json"
    assert cli("config", "schema", "--out", str(out)).code == 0
    assert '"title": "Dovetail config"' in out.read_text()
    assert cli("config", "schema", "--out", str(tmp_path / "no" / "folder.json")).code == 2
    assert cli("config", "show", "peg_insertion", "run.seed=7").out.count("seed: 7") == 1


def test_config_show_prints_the_basic_settings_or_all(cli: Cli, tmp_path: Path) -> None:
    basic, everything = (cli("config", "show", "peg-insertion", *option).out for option in ((), ("--all",)))
    assert "env_steps: 3000" in basic and "checkpoint_every_s" not in basic
    (tmp_path / "all.yaml").write_text(everything)
    config = load(["peg-insertion"])
    assert f"# hash: {config_hash(config)}\n" in everything
    assert load([tmp_path / "all.yaml"]) == config


def test_an_old_key_is_one_warning_on_stderr(cli: Cli) -> None:
    result = cli("config", "show", "peg-insertion", "run.noiseless_share=0.25", "--all")
    assert result.err == "warning: 'run.noiseless_share' is now 'run.deterministic_share'\n"
    assert "deterministic_share: 0.25" in result.out


def test_doctor_checks_the_config_of_a_run_by_name_and_path(cli: Cli, toy: str) -> None:
    RunFolder.create(Path("runs/first"), load([toy]))
    mark_trusted(Path("runs/first"))
    for run in ("first", "runs/first"):
        result = cli("doctor", run)
        assert result.code == 0, result.out
        assert "robot sim, peg_insertion" in result.out
    assert "✗ recipe" in cli("doctor", "first", "policy.inputs=[nothing]").out
    assert "no recipe or file named 'second'" in cli("doctor", "second").line


def test_doctor_refuses_the_config_of_a_foreign_run_that_reaches_outside(cli: Cli, toy: str) -> None:
    RunFolder.create(Path("theirs"), load([toy], ["run.wandb=theirs"]))
    shutil.copytree("theirs", "runs/copied")
    refused = cli("doctor", "copied")
    assert refused.code == 2
    assert "Weights & Biases" in refused.line
    assert "dovetail trust" in refused.line


def test_doctor_of_a_healthy_machine(cli: Cli, toy: str) -> None:
    result = cli("doctor", toy)
    assert "✓ recipe" in result.out
    assert "fit each other" in result.out
    assert result.code == 0
    result = cli("doctor", toy, "policy.inputs=[nothing]")
    assert "✗ recipe" in result.out
    assert result.code == 1
