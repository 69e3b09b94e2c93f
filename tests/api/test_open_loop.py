"""`evaluate_open_loop` and `dovetail eval --open-loop`: datasets, runs, mapping, and the files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import dovetail
from dovetail.api import evaluate_open_loop
from dovetail.api.datasets import export_dataset
from dovetail.api.episodes import Filter
from dovetail.api.recorded_data import DataReader
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.errors import Interrupted, SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import PolicySpec, match
from dovetail.core.types import ActContext, Outcome, Purpose
from dovetail.runs.assembly.policy_components import build_policy
from dovetail.runs.assembly.policy_rate import policy_robot
from dovetail.runs.folder import RunFolder
from support.counting_policy import CountingPolicy
from support.lerobot_v21 import write_v21
from support.made_runs import ROBOT, made_episode, made_run
from support.recorded_runs import record_run
from support.small_checkpoints import SMALL_CHECKPOINTS

COUNTING = "support.counting_policy:CountingPolicy"


def policy(**settings):
    return {"policy": {"type": COUNTING, **settings}}


@pytest.fixture
def run(tmp_path):
    episodes = [made_episode(f"e{i}", num_steps=6 + i, purpose=Purpose.DEMO) for i in range(3)]
    stopped = made_episode("e3", purpose=Purpose.DEMO, outcome=Outcome.ABORTED)
    return made_run(tmp_path / "runs" / "rec", *episodes, stopped, made_episode("e4")).path


def test_demonstrations_of_a_run_are_compared_and_a_bias_is_the_error(run):
    found = evaluate_open_loop(run, run, policy(bias=[0.5, -0.25]))
    assert [one.episode_id for one in found.episodes] == ["e0", "e1", "e2"]  # neither aborted nor online
    assert found.errors.mae.tolist() == found.errors.rmse.tolist() == [0.5, 0.25]
    spread = np.concatenate([np.arange(6 + i) for i in range(3)]).std()
    np.testing.assert_allclose(found.errors.relative, [0.5 / spread, 0.25 / spread])
    np.testing.assert_allclose(found.relative, 0.375 / spread)
    assert found.weights == f"the {COUNTING} policy"


def test_an_exported_dataset_gives_the_same_errors_as_its_run(run, tmp_path):
    export_dataset(run, tmp_path / "set", Filter(purpose=Purpose.DEMO))
    settings = policy(keys=["state", "front", "depth"], bias=[0.5, 0.0])
    ours, theirs = (evaluate_open_loop(run, data, settings) for data in (run, tmp_path / "set"))
    assert [one.episode_id for one in theirs.episodes] == [one.episode_id for one in ours.episodes]
    np.testing.assert_array_equal(ours.errors.rmse_by_step, theirs.errors.rmse_by_step)
    assert CountingPolicy.calls[-1]["depth"].max() > 1000


def test_a_foreign_dataset_needs_only_what_the_policy_looks_at(run, tmp_path):
    content = write_v21(tmp_path / "v21")
    with pytest.raises(SpecMismatch, match=r"cut them out: --rename 'observation.state\[0:3\]=state'"):
        evaluate_open_loop(run, tmp_path / "v21", policy())
    rename = {"observation.state[0:3]": "state"}
    with pytest.raises(SpecMismatch, match=r"names .* differ: a != x, b != y, c != z.*use --ignore-names"):
        evaluate_open_loop(run, tmp_path / "v21", policy(), rename=rename)
    mapped = {"rename": rename, "ignore_names": True}
    found = evaluate_open_loop(run, tmp_path / "v21", policy(horizon=1), **mapped)
    expected = content["state"][:, :1] * (1, -1) - content["action"]
    np.testing.assert_allclose(found.errors.mae, np.abs(expected).mean(axis=0), rtol=1e-5)
    assert [one.prompt for one in found.episodes] == ["stack", "sort", "stack"]
    few = evaluate_open_loop(run, tmp_path / "v21", policy(), **mapped, num_episodes=2, every=2)
    assert [len(one.recorded) for one in few.episodes] == [4, 5]  # the first and the last
    assert few.episodes[1].starts.tolist() == [0, 2, 4]


def test_what_does_not_fit_is_refused_with_what_to_do(run, tmp_path):
    write_v21(tmp_path / "v21", fps=20)
    with pytest.raises(SpecMismatch, match=r"recorded at 20 Hz, but robot 'panda' runs at 10 Hz"):
        evaluate_open_loop(run, tmp_path / "v21", policy(), rename={"observation.state[0:3]": "state"})
    write_v21(tmp_path / "slow")
    looks = policy(keys=["state", "front"])
    rename = {"observation.state[0:3]": "state"}
    with pytest.raises(SpecMismatch, match=r"lacks 'front'.*top uint8\[32, 48, 3\].*--rename FEATURE=front"):
        evaluate_open_loop(run, tmp_path / "slow", looks, rename=rename)
    rename["observation.images.top"] = "front"
    with pytest.raises(SpecMismatch, match=r"has uint8\[12, 16, 3\]\. Set the robot's camera to 48x32 pixels"):
        evaluate_open_loop(run, tmp_path / "slow", looks, rename=rename, ignore_names=True)
    blind = made_run(tmp_path / "blind", made_episode("b0", images=False, robot=ROBOT.with_only(["state"])))
    with pytest.raises(
        SpecMismatch, match=r"looks at camera 'front', which .*blind lack. Their cameras: none. Use data"
    ):
        evaluate_open_loop(run, blind.path, looks)
    with pytest.raises(
        SpecMismatch, match=r"looks at observation 'tip', which .* lack. Their observations: state. Name"
    ):
        DataReader(run, runs_dir=tmp_path, rename={}, ignore_names=False).open(
            dovetail.open(run).config,
            ROBOT,
            PolicySpec(
                name="p",
                observation={"tip": ROBOT.observation["state"]},
                action=ROBOT.action,
                action_kind="ee_delta",
            ),
        )
    large = {**ROBOT.observation, "front": replace(ROBOT.observation["front"], shape=(24, 32, 3))}
    with pytest.raises(SpecMismatch, match=r"has uint8\[24, 32, 3\]. Set this camera to 16x12 pixels"):
        match(replace(ROBOT, observation=large), stored=ROBOT)
    action = replace(ROBOT.action, low=(-2.0, -2.0), high=(2.0, 2.0))
    other = made_run(tmp_path / "other", made_episode("o0", robot=replace(ROBOT, action=action, parts=())))
    with pytest.raises(
        SpecMismatch, match=r"limits .* differ.*\. Use episodes of this robot, or override the section"
    ):
        evaluate_open_loop(run, other.path, policy())
    with pytest.raises(UsageError, match=r"neither a LeRobot dataset \(it has no meta/info.json\) nor a run"):
        evaluate_open_loop(run, tmp_path, policy())
    with pytest.raises(UsageError, match="has no episodes to compare with"):
        evaluate_open_loop(run, made_run(tmp_path / "empty").path, policy())
    with pytest.raises(UsageError, match="--rename and --ignore-names are for LeRobot datasets"):
        evaluate_open_loop(run, run, policy(), ignore_names=True)


def test_it_stops_between_chunks_when_asked(run):
    done = []
    with pytest.raises(Interrupted):
        evaluate_open_loop(
            run, run, policy(), on_progress=lambda *at: done.append(at), should_stop=lambda: len(done) > 4
        )
    assert done[0] == ("loading the policy", 0.0, 0) and done[-1][1] < 2


def test_the_command_prints_tables_and_writes_json_and_plots(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = "policy={type: '" + COUNTING + "', bias: [0.5, 0.0]}"
    assert main(["eval", "rec", settings, "--open-loop", "rec"]) == 0
    shown = capsys.readouterr().out
    assert "error per axis" in shown and "error per step ahead" in shown
    folder = run / "open_loop" / "rec"
    facts = json.loads((folder / "errors.json").read_text())
    assert [axis["mae"] for axis in facts["axes"]] == [0.5, 0.0]
    assert [step["num_compared"] for step in facts["steps"]] == [8, 7, 6]
    assert {path.name for path in folder.iterdir()} == {
        "errors.json",
        "error_by_step.png",
        "episode_1.png",
        "episode_2.png",
        "episode_3.png",
    }
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            assert picture.width > 800
    assert main(["eval", "rec", settings, "--open-loop", "rec", "--out", "other", "-n", "1", "-q"]) == 0
    assert sorted(path.name for path in (tmp_path / "other").iterdir())[0] == "episode_1.png"
    assert "RMSE" not in capsys.readouterr().out
    dovetail.open("rec")  # the run folder stays valid


@pytest.mark.extended
@pytest.mark.parametrize("kind", sorted(SMALL_CHECKPOINTS))
def test_a_published_policy_is_checked_with_the_chunks_that_it_acts_with(tmp_path, kind):
    recorded = record_run(tmp_path / "runs" / "rec", num_episodes=2, cameras=("front",))
    section = SMALL_CHECKPOINTS[kind](tmp_path / kind)
    found = evaluate_open_loop(recorded.path, recorded.path, {"policy": section}, num_episodes=1, every=4)
    episode = dovetail.open(recorded.path).episodes[0].load()
    one = found.episodes[0]
    built = build_policy(
        PluginSection.parse("policy", section), robot=policy_robot(recorded.config, episode.robot), seed=0
    )
    inputs = {key: episode.column(f"observation/{key}")[4:5] for key in built.spec.observation}
    inputs["prompt"] = encode_prompt(episode.prompt)[None]
    chunk = built.act(inputs, ActContext(deterministic=True, seed=4)).actions[0]
    assert one.prompt == episode.prompt != ""
    np.testing.assert_array_equal(one.chunks[1], chunk)
    np.testing.assert_array_equal(one.targets[1, 0], episode.column("executed")[4])
    assert np.isfinite(found.relative) and found.units == ("",) * 6  # this robot is in the form of 0.6


@pytest.mark.extended
def test_of_several_arms_the_one_that_fits_the_data_is_checked(tmp_path):
    recorded = record_run(tmp_path / "runs" / "rec", num_episodes=1, cameras=("front",))
    scene = {"type": "sim", "images": ["front"], "image_size": [64, 64]}
    arms = {"cluster.robots": {name: {"robot": {**scene, "arm": name}} for name in ("x5", "panda")}}
    both = RunFolder.create(tmp_path / "runs" / "both", load(["push-cube"], {**arms, "task.time_limit_s": 1.2}))
    section = SMALL_CHECKPOINTS["pi0"](tmp_path / "pi0")
    found = evaluate_open_loop(both.path, recorded.path, {"policy": section})
    assert len(found.episodes) == 1 and found.axes[0] == "dx"


def test_dollars_in_names_are_no_formulas(run, tmp_path):
    found = replace(evaluate_open_loop(run, run, policy()), dataset=tmp_path / "a$\\frac$")
    assert (found.save(tmp_path / "plots") / "error_by_step.png").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--open-loop", "rec", "--viewer"], "leave out --viewer"),
        (["--out", "x"], "need --open-loop DATASET"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(run, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "rec", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
