"""Whole runs with a policy at a fifth of the robot's rate: it learns, and its weights cannot act at another rate."""

import json

import numpy as np
import pytest

from dovetail.api import evaluate
from dovetail.cli.main import main
from dovetail.core.errors import UsageError
from dovetail.core.types import Purpose, Source
from dovetail.episodes.log import EpisodeLog

CLONING = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 80, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm", control_hz: 50}
actor: {type: sequential, policy_hz: 10, resample: linear}
policy: {type: flow, inputs: [ee_pose, goal], horizon: 2, history: {ee_pose: 2}, hidden: 64, num_layers: 2}
algorithm: {type: imitation}
learner: {bc_updates: 400, warmup_updates: 0}
run: {demos: 12, env_steps: 0, eval_episodes: 10, untrained_episodes: 5, video_episodes: 0}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rate")
    (folder / "slow.yaml").write_text(CLONING)
    assert main(["run", str(folder / "slow.yaml"), "--runs-dir", str(folder), "--name", "slow", "--quiet"]) == 0
    return folder


def test_a_policy_at_a_fifth_of_the_rate_clones_demonstrations_at_the_full_rate(runs):
    report = json.loads((runs / "slow" / "report.json").read_text())
    assert report["success_after"]["rate"] >= 0.8


def test_ticks_of_a_step_share_its_motion(runs):
    log = EpisodeLog(runs / "slow" / "episodes")
    episode = next(log.load(one) for one in reversed(log.ids()) if log.manifest(one).purpose is Purpose.EVAL)
    moved = episode.column("proposed")[:, :3]
    assert (episode.column("source") == Source.POLICY).all()
    whole = moved[: 5 * (len(moved) // 5)].reshape(-1, 5, 3)
    np.testing.assert_allclose(whole, np.broadcast_to(whole[:, :1], whole.shape), atol=1e-6)  # equal within a step
    assert np.abs(whole).max() <= 0.02 + 1e-6  # within the limits of a tick


@pytest.mark.parametrize("actor", ["{type: naive}", "{type: sequential, policy_hz: 25, resample: hold}"])
def test_weights_are_refused_at_another_rate(runs, actor):
    with pytest.raises(UsageError, match=r"trained with actor\.policy_hz=10"):
        evaluate("slow", [f"actor={actor}"], num_episodes=1, runs_dir=runs)


def test_a_policy_at_30_hz_learns_and_acts_on_a_robot_at_50_hz(runs):
    """With real-time chunking. A step is 5/3 ticks; the weights are refused at another rate."""
    actor = "actor={type: rtc, policy_hz: 30, resample: linear, simulated_delay_ticks: 1}"
    settings = [actor, "policy.horizon=4", "run.eval_episodes=5"]
    where = ["--runs-dir", str(runs), "--name", "thirty"]
    assert main(["run", str(runs / "slow.yaml"), *settings, *where, "--quiet"]) == 0
    report = json.loads((runs / "thirty" / "report.json").read_text())
    assert report["success_after"]["rate"] >= 0.6
    log = EpisodeLog(runs / "thirty" / "episodes")
    episode = next(log.load(one) for one in reversed(log.ids()) if log.manifest(one).purpose is Purpose.EVAL)
    moved = np.abs(episode.column("proposed")[:, :3])
    assert 0.01 < moved.max() <= 0.02 + 1e-6  # a step may move by 0.0333, a tick by 0.02
    with pytest.raises(UsageError, match=r"trained with actor\.policy_hz=30"):
        evaluate("thirty", ["actor={type: rtc, policy_hz: 25, resample: linear}"], num_episodes=1, runs_dir=runs)


@pytest.mark.extended
def test_a_policy_at_30_hz_acts_alike_in_processes(runs):
    """A run in processes and one in a single process give the same episodes."""
    config = {"type": "rtc", "policy_hz": 30, "resample": "linear", "simulated_delay_ticks": 2}
    name = "thirty_processes"
    where = ["--runs-dir", str(runs), "--name", name, "--quiet", "policy.horizon=4", "run.eval_episodes=1"]
    assert main(["run", str(runs / "slow.yaml"), f"actor={json.dumps(config)}", *where]) == 0
    found = [
        evaluate(name, {"actor": {**config, "layout": layout}}, num_episodes=3, runs_dir=runs).performance
        for layout in ("one_process", "processes")
    ]
    assert found[0] == found[1] and found[0].num_episodes == 3


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["rtc", "soft"])
def test_weights_act_in_other_modes_and_processes(runs, kind):
    actor = f"actor={{type: {kind}, policy_hz: 10, resample: linear, layout: processes, simulated_delay_ticks: 3}}"
    found = evaluate("slow", [actor], num_episodes=2, runs_dir=runs)
    assert found.performance.num_episodes == 2


@pytest.mark.parametrize(
    ("setting", "because"),
    [
        ("actor.policy_hz=60", "at most 50"),
        ("actor.resample=chunk", "linear or hold"),
    ],
)
def test_rates_that_do_not_fit_are_refused_before_the_run(runs, setting, because, capfd):
    assert main(["run", str(runs / "slow.yaml"), setting, "--runs-dir", str(runs), "--name", "other"]) != 0
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert because in line
    assert not (runs / "other").exists()
