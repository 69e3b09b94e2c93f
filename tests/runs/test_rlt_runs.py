"""Whole runs with RLT and DSRL: embeddings in every step, takeover, resume, processes, and a VLA as the base."""

import numpy as np
import pytest

import dovetail
from dovetail.core.frozen_base import referenced_base
from dovetail.core.types import Purpose, Source
from dovetail.episodes.log import EpisodeLog
from dovetail.weights.store import DiskWeightStore
from support.run_digests import run_digests

WORLD = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
"""
BASE = (
    WORLD
    + """
policy: {type: flow, hidden: 16, num_layers: 1, horizon: 4, num_flow_steps: 2}
algorithm: {type: imitation}
learner: {bc_updates: 0, warmup_updates: 20}
run: {demos: 3, env_steps: 0, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0}
"""
)
RLT = (
    WORLD
    + """
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
actor: {type: sequential, execution_horizon: 2}
policy: {type: rl_token, base: {run: BASE}, hidden: [16], horizon: 2, num_embeddings: 1, embedding_width: WIDTH,
         token_size: 4, token_width: 8, token_layers: 1, decoder_hidden: [8]}
algorithm: {type: rlt, batch_size: 32, hidden: [32], token_updates: 10, base_updates: 20}
learner: {utd: 1, warmup_updates: 20, bc_updates: 0}
run: {demos: 2, env_steps: 60, eval_episodes: 2, untrained_episodes: 1, video_episodes: 0}
"""
)


def launch(folder, text, name, *overrides, train=False, **options):
    text = text.replace("BASE", str(folder / "base"))
    if "WIDTH" in text:
        text = text.replace("WIDTH", str(dovetail.open(folder / "base").policy()._policy.num_features))
    (folder / f"{name}.yaml").write_text(text)
    start = dovetail.train if train else dovetail.run
    start([folder / f"{name}.yaml"], list(overrides), runs_dir=folder, name=name, **options)
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rlt")
    launch(folder, BASE, "base", train=True)
    launch(folder, RLT, "whole")
    return folder


def episodes(run):
    log = EpisodeLog(run / "episodes")
    return [log.load(one) for one in log.ids()]


def test_every_step_has_the_embedding_of_an_observation_that_the_base_saw(runs):
    """The flow's only embedding is its normalized observation."""
    base = dovetail.open(runs / "base").policy()._policy
    found = episodes(runs / "whole")
    assert {episode.purpose for episode in found} == set(Purpose)
    for episode in found:
        embedded = episode.column("observation/embedding")
        keys = base.spec.observation
        features = np.asarray(
            base.features(base._tensors({key: episode.column(f"observation/{key}") for key in keys}))
        )
        index = episode.column("chunk_index")
        asked = index == 0  # the policy began a chunk, or a person drives
        assert np.allclose(embedded[asked], features[asked], atol=1e-5)
        later = np.flatnonzero(~asked)
        assert np.array_equal(embedded[later], embedded[later - 1])  # the newest that is known
        assert np.isfinite(episode.last_observation.values["embedding"]).all()
    helped = next(episode for episode in found if episode.purpose is Purpose.ONLINE and episode.num_human_steps)
    human = helped.column("source") == Source.HUMAN
    assert len(np.unique(helped.column("observation/embedding")[human], axis=0)) > 1


def test_before_the_actor_is_engaged_the_executed_actions_are_the_proposals(runs):
    untrained = next(episode for episode in episodes(runs / "whole") if episode.purpose is Purpose.EVAL)
    first = untrained.column("observation/proposal")[:, : untrained.column("proposed").shape[1]]
    assert np.array_equal(untrained.column("proposed"), first)


def test_versions_have_what_is_trained(runs):
    newest = DiskWeightStore(runs / "whole" / "weights").latest()
    assert set(newest.components) == {"token", "actor", "normalizer"}
    assert newest.components["actor"]["engaged"] == 1.0


def test_run_in_processes_is_identical(runs):
    other = launch(runs, RLT, "processes", "actor.layout=processes")
    assert run_digests(other)["weights"] == run_digests(runs / "whole")["weights"]
    assert run_digests(other)["episodes"] == run_digests(runs / "whole")["episodes"]


@pytest.mark.parametrize("num_episodes", [4, 6])
def test_interrupted_run_continues_identically_without_the_run_of_its_base(runs, num_episodes):
    name = f"parts{num_episodes}"
    with pytest.raises(dovetail.Interrupted):
        launch(
            runs, RLT, name, should_stop=lambda: len(EpisodeLog(runs / name / "episodes").ids()) >= num_episodes
        )
    moved = (runs / "base").rename(runs / "moved")
    try:
        dovetail.run(resume=name, runs_dir=runs)
    finally:
        moved.rename(runs / "base")
    assert run_digests(runs / name)["weights"] == run_digests(runs / "whole")["weights"]


# ---- a small VLA

VLA = {
    "run.demos": 2,
    "run.eval_episodes": 1,
    "run.untrained_episodes": 0,
    "run.video_episodes": 0,
    "task.time_limit_s": 2.0,
}


@pytest.fixture(scope="module")
def vla_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vla")
    dovetail.train("push-cube-rlt-base", {**VLA, "learner.warmup_updates": 2}, runs_dir=folder, name="base")
    return folder


@pytest.mark.extended
def test_rlt_improves_a_vla_of_another_run_and_resumes_without_it(vla_runs):
    settings = {
        **VLA,
        "policy.base.run": str(vla_runs / "base"),
        "algorithm.token_updates": 4,
        "algorithm.base_updates": 4,
        "learner.warmup_updates": 6,
        "learner.utd": 0.2,
        "run.env_steps": 60,
    }
    dovetail.run("push-cube-rlt", settings, runs_dir=vla_runs, name="whole")
    with pytest.raises(dovetail.Interrupted):
        dovetail.run(
            "push-cube-rlt",
            settings,
            runs_dir=vla_runs,
            name="parts",
            should_stop=lambda: len(EpisodeLog(vla_runs / "parts" / "episodes").ids()) >= 4,
        )
    moved = (vla_runs / "base").rename(vla_runs / "moved")
    try:
        dovetail.run(resume="parts", runs_dir=vla_runs)
    finally:
        moved.rename(vla_runs / "base")
    assert run_digests(vla_runs / "parts")["weights"] == run_digests(vla_runs / "whole")["weights"]
    newest = DiskWeightStore(vla_runs / "whole" / "weights").latest()
    assert set(newest.components) == {"token", "actor", "normalizer"}
    embedded = episodes(vla_runs / "whole")[0].column("observation/embedding")
    assert embedded.shape[1] == 8 * 96
    assert embedded.std(axis=0).max() > 0.0


@pytest.mark.extended
def test_dsrl_steers_a_vla_that_the_same_run_cloned_and_resumes(vla_runs):
    settings = {
        **VLA,
        "task.time_limit_s": 8.0,
        "learner.bc_updates": 2,
        "learner.warmup_updates": 4,
        "learner.utd": 0.1,
        "algorithm.actor_after": 2,
        "algorithm.batch_size": 4,
        "run.env_steps": 60,
    }
    dovetail.run("push-by-prompt-dsrl", settings, runs_dir=vla_runs, name="steered")
    with pytest.raises(dovetail.Interrupted):
        dovetail.run(
            "push-by-prompt-dsrl",
            settings,
            runs_dir=vla_runs,
            name="steered-parts",
            should_stop=lambda: len(EpisodeLog(vla_runs / "steered-parts" / "episodes").ids()) >= 5,
        )
    dovetail.run(resume="steered-parts", runs_dir=vla_runs)
    assert run_digests(vla_runs / "steered-parts")["weights"] == run_digests(vla_runs / "steered")["weights"]
    store = DiskWeightStore(vla_runs / "steered" / "weights")
    first, last = store.load(min(store.versions())).components, store.latest().components
    changed = {name for name in last if any(not np.array_equal(last[name][k], first[name][k]) for k in last[name])}
    assert changed == {"steering"}  # the model itself is frozen
    assert referenced_base(last["vision"])
