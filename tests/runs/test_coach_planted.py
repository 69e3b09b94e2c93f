"""Whole runs with one planted problem each: the coach names it, and its command removes it. Good runs get no advice."""

import shlex

import pytest

from dovetail.config.load import load
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from support.planted_causes import PLANTED
from support.toy_run import TOY

CAUSES = [one for one in PLANTED if one.cause]
IDS = [f"{one.check}: {one.cause}" if one.cause else one.check for one in PLANTED]


@pytest.fixture
def run(tmp_path):
    """Run a config to its end; gives its folder."""

    def run(name, sources, overrides):
        folder = RunFolder.create(tmp_path / name, load(sources, overrides))
        InlineRun(folder).run()
        return folder

    return run


def planted_run(run, tmp_path, planted, *, seed):
    path = tmp_path / "planted.yaml"
    path.write_text(planted.config)
    return run("planted", [path], [*planted.overrides, f"run.seed={seed}"])


def advice_of(folder):
    return {event["name"]: event for event in folder.events("coach")}


@pytest.mark.extended
@pytest.mark.parametrize("planted", PLANTED, ids=IDS)
def test_advice_removes_what_it_complains_about(run, tmp_path, planted):
    folder = planted_run(run, tmp_path, planted, seed=0)
    advice = advice_of(folder)[planted.check]
    assert advice["cause"] and advice["evidence"]
    dovetail, command, config, *overrides = shlex.split(advice["try"])
    assert (dovetail, command) == ("dovetail", "run")
    *overrides, option, name = overrides
    assert overrides and (option, name) == ("--name", "planted-2")
    followed = run("followed", [config], overrides)
    assert advice["cause"] not in [event["cause"] for event in followed.events("coach")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("planted", CAUSES, ids=[one.cause for one in CAUSES])
def test_planted_cause_is_named(run, tmp_path, planted, seed):
    assert planted.check in advice_of(planted_run(run, tmp_path, planted, seed=seed))


SHORT = ("run.untrained_episodes=0", "run.video_episodes=0", "run.eval_episodes=10")
SOLVABLE = ("task.tolerance=0.1", "run.eval_episodes=20")  # the toy's policy succeeds alone in the last evaluation
HEALTHY = {  # a recipe, or the toy run, with a budget after which every check can report
    "toy": ("toy", *SOLVABLE, "run.env_steps=600", "learner={utd: 1, warmup_updates: 100, bc_updates: 200}"),
    "toy, another seed": (
        "toy",
        *SOLVABLE,
        "run.seed=7",
        "run.env_steps=600",
        "learner={utd: 1, warmup_updates: 100}",
    ),
    "push-cube": ("push-cube", *SHORT, "run.seed=11", "run.env_steps=1500"),
    "push-cube, another seed": ("push-cube", *SHORT, "run.seed=12", "run.env_steps=1500"),
    "peg-insertion": ("peg-insertion", *SHORT, "run.seed=11", "run.env_steps=1500"),
    "peg-insertion, another seed": ("peg-insertion", *SHORT, "run.seed=12", "run.env_steps=1500"),
    "peg-insertion-sac": ("peg-insertion-sac", *SHORT, "run.seed=11", "run.env_steps=1500"),
    "pick-place": ("pick-place", *SHORT, "run.seed=11", "run.env_steps=2000"),
    "charger": ("charger", *SHORT, "run.seed=11", "run.env_steps=1500"),
    "cap-tightening": ("cap-tightening", *SHORT, "run.seed=11", "run.env_steps=1500"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_run_gets_no_advice(run, tmp_path, name):
    recipe, *overrides = HEALTHY[name]
    (tmp_path / "toy.yaml").write_text(TOY)
    folder = run("healthy", [tmp_path / "toy.yaml" if recipe == "toy" else recipe], overrides)
    assert len(list(folder.events("episode"))) >= 15
    assert {event["name"]: event["message"] for event in folder.events("coach")} == {}
