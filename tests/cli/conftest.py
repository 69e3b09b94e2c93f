"""Fixtures: the command line in this process, and one tiny finished run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dovetail.cli._terminal import console
from dovetail.cli.main import main
from dovetail.config.trust import mark_trusted
from support.command_line import TOY, Cli, Result


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe file, alone in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(TOY)
    return "toy.yaml"


@pytest.fixture(scope="session")
def _one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one-run")
    (folder / "toy.yaml").write_text(TOY)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["run", "toy.yaml", "--name", "done", "--quiet"]) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "done"


@pytest.fixture
def finished(_one_run: Path, toy: str) -> Path:
    """A copy of a finished run, which a test may damage: `runs/done` in the current folder."""
    copy = Path(shutil.copytree(_one_run, "runs/done"))
    mark_trusted(copy)  # a copy is not, and the toy's plugins are not built in
    return copy


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that does not depend on the width of the terminal."""
    monkeypatch.setattr(console, "width", 200)
