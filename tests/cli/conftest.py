"""The command line in this process, and one tiny run that all tests look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dovetail.cli.main import main

TOY = """\
# Peg insertion with budgets so small that nothing is learned.
task: peg_insertion
robot: sim
operator: scripted
policy: {type: gaussian_mlp, hidden: [16]}
algorithm: {type: rlpd, hidden: [16], batch_size: 16}
run: {demos: 2, env_steps: 30, eval_episodes: 2, untrained_episodes: 1, showcase_episodes: 1}
learner: {utd: 1, bc_updates: 20, warmup_updates: 20}
"""


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error: ")
        return self.err


Cli = Callable[..., Result]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe file in the current folder, which is empty but for it."""
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
    """A copy, to be damaged at will, of a run that has ended: `runs/done` in the current folder."""
    shutil.copytree(_one_run, "runs/done")
    return Path("runs/done")
