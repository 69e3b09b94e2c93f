"""`--gym ID`: one line from an environment to a report, and every later command on that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Cli

GOAL, DENSE = "support.gym_envs:PointGoal-v0", "support.gym_envs:PointDense-v0"
TINY = (
    "run.env_steps=60",
    "run.eval_episodes=2",
    "run.untrained_episodes=1",
    "run.eval_every_steps=null",
    "learner.start_after_steps=20",
    "algorithm.batch_size=16",
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_prints_its_choices_and_can_be_resumed_and_evaluated(cli: Cli) -> None:
    result = cli("run", "--gym", GOAL, *TINY, "--name", "goal")
    assert result.code == 0, result.err
    assert "algorithm    sac" in result.out
    assert "sparse: -1 or 0" in result.out
    report = json.loads(Path("runs/goal/report.json").read_text())
    assert report["success_after"]["episodes"] == 2
    assert report["env_steps"] >= 60
    assert cli("run", "--resume", "goal").code == 0
    evaluated = cli("eval", "goal", "--episodes", "2")
    assert evaluated.code == 0, evaluated.err
    assert "of 2" in evaluated.out


def test_env_without_success_reports_its_return(cli: Cli) -> None:
    result = cli("run", "--gym", DENSE, *TINY, "--name", "dense")
    assert result.code == 0, result.err
    assert "success      none: the return counts" in result.out
    assert "return -" in result.out
    for absent in ("human", "intervention", "episodes video"):
        assert absent not in result.out


def test_ppo_reports_the_environment_by_its_name(cli: Cli) -> None:
    small = ("algorithm=ppo", "algorithm.num_envs=2", "algorithm.rollout_steps=32", "run.env_steps=64")
    result = cli(
        "run", "--gym", DENSE, *small, "run.eval_episodes=2", "run.eval_every_steps=null", "--name", "ppo"
    )
    assert result.code == 0, result.err
    assert f"{DENSE}: return -" in result.out


def test_run_without_a_name_is_named_after_the_environment(cli: Cli) -> None:
    assert cli("run", "--gym", GOAL, *TINY, "--quiet").code == 0
    (run,) = Path("runs").iterdir()
    assert "PointGoal-v0" in run.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gym", "CartPole-v1"), "takes Discrete(2) actions, but a robot needs a Box of floats"),
        (("--gym", "Pendulm-v1"), "Did you mean 'Pendulum-v1'?"),
        (("--gym", GOAL, "--resume", "goal"), "a resumed run knows its environment: leave out --gym"),
        (("--gym", GOAL, "run.env_stepps=3"), "run.env_stepps"),
    ],
)
def test_wrong_use_is_refused_in_one_line_and_leaves_no_folder(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("run", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.splitlines()[-1].startswith("error: ")
    assert result.err.count("error: ") == 1
    assert not Path("runs").exists()


def test_doctor_and_config_show_take_an_environment(cli: Cli) -> None:
    assert "robot gym, its own task, policy gaussian_mlp, algorithm sac" in cli("doctor", "--gym", GOAL).out
    shown = cli("config", "show", "--gym", GOAL)
    assert shown.code == 0
    Path("mine.yaml").write_text(shown.out)
    assert "hidden: [256, 256]" in shown.out
    assert cli("config", "show", "mine.yaml").code == 0


def test_report_films_the_camera_of_the_environment(cli: Cli) -> None:
    result = cli(
        "run", "--gym", "support.gym_envs:PointImage-v0", *TINY, "run.video_camera=front", "--name", "seen"
    )
    assert result.code == 0, result.err
    assert Path("runs/seen/before_after.mp4").stat().st_size > 0
    assert "side.mp4" in cli("episodes", "video", "seen", "last").out
    assert cli("episodes", "video", "seen", "last", "--camera", "front").code == 2


def test_run_of_an_env_without_images_names_the_setting_that_records_them(cli: Cli) -> None:
    result = cli("run", "--gym", DENSE, *TINY, "--name", "blind")
    assert "record images with robot.render_key=front" in result.out
