"""The example of docs/python.md runs, and `import dovetail` loads neither torch nor Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.core.errors import DovetailError, Interrupted

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
LIGHT = """
import sys
import dovetail
dovetail.run, dovetail.open, dovetail.evaluate, dovetail.Run
dovetail.load_config
print([name for name in ("torch", "ray", "mujoco") if name in sys.modules])
"""


def test_import_loads_neither_torch_nor_ray() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_public_names_exist() -> None:
    for name in dovetail.__all__:
        assert getattr(dovetail, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        dovetail.runn  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("python"))
        exec(compile(code, str(PAGE), "exec"), names)
        names["run"] = dovetail.open(Path.cwd() / "runs" / "from-python")
    return names


@pytest.mark.extended
def test_the_example_of_the_page_runs(example: dict[str, Any]) -> None:
    run = example["run"]
    assert run.name == "from-python" and run.report.env_steps >= 100
    assert (run.path / "report.json").is_file()
    assert len(run.episodes) == len(run.episodes.ids) > 6
    assert example["chunk"].actions.shape == (1, 6)
    assert example["result"].rate.episodes == 2 and example["result"].complete
    assert np.isfinite(example["curve"].values).all() and len(example["curve"].steps)
    assert [event["seed"] for event in run.events("eval")] == [7]
    assert example["config"].run.seed == 3
    assert example["found"].errors.rmse_by_step.shape == (1, 6)
    assert (run.path / "open_loop" / "from-python" / "errors.json").is_file()


def test_the_policy_acts_as_in_the_run(example: dict[str, Any]) -> None:
    run = example["run"]
    episode = run.episodes.filter(purpose="eval")[-1]
    arrays, policy = episode.arrays(), run.policy(version=episode.info.policy_versions[-1])
    for step in range(3):
        observation = {key: arrays[f"observation/{key}"][step] for key in policy.spec.observation}
        np.testing.assert_allclose(policy.act(observation).actions[0], arrays["proposed"][step], atol=1e-6)
    with pytest.raises(DovetailError, match="also needs the observations"):
        policy.act({})


def test_progress_and_interruption(tmp_path: Path) -> None:
    phases: list[str] = []
    small = {"run.demos": 2, "run.env_steps": 50, "run.eval_episodes": 1, "run.untrained_episodes": 1}
    options = {"runs_dir": tmp_path, "on_progress": lambda status: phases.append(status.phase)}
    with pytest.raises(Interrupted):
        dovetail.run("peg-insertion", small, name="a", should_stop=lambda: len(phases) > 3, **options)
    assert dovetail.open("a", runs_dir=tmp_path).config.run.env_steps == 50
    run = dovetail.collect(resume="a", **options)
    assert len(run.episodes.filter(purpose="demo", label="success")) >= 2
    assert len(set(phases)) > 1


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DovetailError, match=r"Did you mean 'run\.seed'"):
        dovetail.run("peg-insertion", {"run.sede": 1}, runs_dir=tmp_path)
    with pytest.raises(DovetailError, match="Did you mean 'joint_pos'"):
        dovetail.run("peg-insertion", {"policy.inputs": ["joint_pso"]}, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
