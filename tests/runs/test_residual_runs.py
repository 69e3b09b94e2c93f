"""Whole runs with a residual policy: proposals in every step, resume, processes, and a base behind a real socket."""

import numpy as np
import pytest

import dovetail
from dovetail.api.deployment import deploy, deployment_of
from dovetail.api.distillation import distill
from dovetail.api.policy import following_policy
from dovetail.api.weights import find_weights
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.streams import stream
from dovetail.core.types import ActContext, Outcome, Purpose, Source
from dovetail.episodes.log import EpisodeLog
from dovetail.policies.images.backbones import ResNet, save_backbone
from support.policy_servers import TOKEN, serving
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
RESIDUAL = (
    WORLD
    + """
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
policy: {type: residual, base: {run: BASE}, hidden: [16]}
algorithm: {type: residual, batch_size: 32, hidden: [32], base_updates: 20, growth_updates: 40, bc_weight: 1.0}
learner: {utd: 1, warmup_updates: 10, bc_updates: 0}
run: {demos: 2, env_steps: 60, eval_episodes: 2, untrained_episodes: 1, video_episodes: 0}
"""
)


def launch(folder, text, name, *overrides, train=False, **options):
    (folder / f"{name}.yaml").write_text(text.replace("BASE", str(folder / "base")))
    start = dovetail.train if train else dovetail.run
    start([folder / f"{name}.yaml"], list(overrides), runs_dir=folder, name=name, **options)
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("residual")
    launch(folder, BASE, "base", train=True)
    launch(folder, RESIDUAL, "whole")
    return folder


def episodes(run):
    log = EpisodeLog(run / "episodes")
    return [log.load(one) for one in log.ids()]


def test_every_step_and_the_last_observation_have_a_proposal(runs):
    found = episodes(runs / "whole")
    assert {episode.purpose for episode in found} == set(Purpose)
    for episode in found:
        assert np.isfinite(episode.column("observation/proposal")).all()
        assert np.isfinite(episode.last_observation.values["proposal"]).all()
    helped = next(episode for episode in found if episode.purpose is Purpose.ONLINE and episode.num_human_steps)
    human = helped.column("source") == Source.HUMAN
    proposals = helped.column("observation/proposal")[human]
    assert len(np.unique(proposals, axis=0)) > 1  # the base keeps proposing while a person drives
    assert not np.allclose(proposals, helped.column("executed")[human])


def test_before_the_bound_grows_the_executed_actions_are_the_proposals(runs):
    untrained = next(episode for episode in episodes(runs / "whole") if episode.purpose is Purpose.EVAL)
    assert np.array_equal(untrained.column("proposed"), untrained.column("observation/proposal"))


def test_run_in_processes_is_identical(runs):
    other = launch(runs, RESIDUAL, "processes", "actor.layout=processes")
    assert run_digests(other)["weights"] == run_digests(runs / "whole")["weights"]
    assert run_digests(other)["episodes"] == run_digests(runs / "whole")["episodes"]


@pytest.mark.parametrize("layout", ["one_process", pytest.param("processes", marks=pytest.mark.extended)])
def test_base_acts_alone_at_first_in_episodes_that_probe(runs, layout):
    """Each training episode draws 1 to 3 steps from the stream `probe` of its number; evaluations do not."""
    settings = ("actor.probe_share=1", "actor.probe_steps=3", "run.deterministic_share=0", "operator.type=none")
    settings = (*settings, "algorithm.base_updates=1", "algorithm.growth_updates=1", f"actor.layout={layout}")
    run = launch(runs, RESIDUAL, f"probe-{layout}", *settings)
    alone = {Purpose.ONLINE: [], Purpose.EVAL: []}
    for episode in episodes(run):
        if episode.purpose is not Purpose.DEMO:
            proposal = episode.column("observation/proposal")
            corrected = (episode.column("proposed") != proposal).any(axis=1)
            alone[episode.purpose].append(int(np.argmax(corrected)) if corrected.any() else len(corrected))
    drawn = []
    for index in range(len(alone[Purpose.ONLINE])):
        rng = stream(0, "probe", index)
        rng.random()  # whether the episode probes
        drawn.append(int(rng.integers(1, 4)))
    assert alone[Purpose.ONLINE][1:] == drawn[1:] and len(drawn) > 1  # in the first one nothing is learned yet
    assert alone[Purpose.EVAL][-1] == 0


def test_probing_without_a_base_is_refused(runs):
    with pytest.raises(UsageError, match=r"actor\.probe_share needs a policy with a base"):
        launch(runs, BASE, "none", "actor.probe_share=0.5", "run.env_steps=30")


def test_interrupted_run_continues_identically_without_the_run_of_its_base(runs):
    with pytest.raises(dovetail.Interrupted):
        launch(
            runs, RESIDUAL, "parts", should_stop=lambda: len(EpisodeLog(runs / "parts" / "episodes").ids()) >= 6
        )
    moved = (runs / "base").rename(runs / "moved")
    try:
        dovetail.run(resume="parts", runs_dir=runs)
    finally:
        moved.rename(runs / "base")
    assert run_digests(runs / "parts")["weights"] == run_digests(runs / "whole")["weights"]


def test_base_behind_a_socket_gives_the_same_run(runs, monkeypatch):
    monkeypatch.setenv("DOVETAIL_TOKEN", TOKEN.decode())
    base = dovetail.open(runs / "base").policy()._policy
    with serving(base) as address:
        served = RESIDUAL.replace("{run: BASE}", f"{{type: remote, address: '{address}'}}")
        other = launch(runs, served, "served")
    assert run_digests(other)["weights"] == run_digests(runs / "whole")["weights"]


def test_served_residual_needs_no_proposal_and_acts_as_from_python(runs):
    served = following_policy(find_weights(runs / "whole"), log=lambda line: None)
    assert "proposal" not in served.spec.observation and served.spec.base is None
    rng = np.random.default_rng(3)
    rows = {
        key: rng.random((2, *array.shape)).astype(np.float32) for key, array in served.spec.observation.items()
    }
    chunk = served.act(rows, ActContext(deterministic=True))
    local = dovetail.open(runs / "whole").policy()
    for row in range(2):
        one = local.act({key: values[row] for key, values in rows.items()})
        assert np.allclose(chunk.actions[row], one.actions, atol=1e-6)
    assert "proposal" not in chunk.extras


def test_chunks_of_corrections_run_with_real_time_chunking(runs):
    other = launch(
        runs,
        RESIDUAL,
        "rtc",
        "policy.horizon=4",
        "actor.type=rtc",
        "actor.simulated_delay_ticks=1",
        "run.env_steps=30",
    )
    found = [episode for episode in episodes(other) if episode.purpose is Purpose.ONLINE]
    assert found
    assert all(np.isfinite(episode.column("observation/proposal")).all() for episode in found)
    assert found[0].column("observation/proposal").shape[1] == 4 * found[0].column("executed").shape[1]


def test_distilled_run_learns_from_successes_without_proposals_and_records_its_lineage(runs):
    made = distill(runs / "whole", runs / "base", name="distilled", num_updates=5, runs_dir=runs, evaluate=False)
    found = episodes(runs / "distilled")
    assert len(found) == made.num_episodes > 2
    assert all(episode.purpose is Purpose.DEMO and episode.outcome is Outcome.SUCCESS for episode in found)
    assert not any("observation/proposal" in segment.columns for one in found for segment in one.segments)
    assert {one.id for one in found} <= {
        one.id for one in episodes(runs / "whole") if one.purpose is not Purpose.EVAL
    }
    lineage = made.run.events("distill")[0]
    assert (lineage["run"], lineage["into_version"]) == (str(runs / "whole"), 1)
    assert lineage["episodes"] == [one.id for one in found]
    kept = made.run.policy()._policy.weights()["normalizer"]
    assert all(
        np.array_equal(kept[key], value)
        for key, value in dovetail.open(runs / "base").policy()._policy.weights()["normalizer"].items()
    )  # networks trained with other statistics need those


def test_distilling_reads_one_episode_after_another(runs, monkeypatch):
    """The images of all episodes together would not fit in memory."""
    calls = []
    for name in ("load", "commit"):
        plain = getattr(EpisodeLog, name)
        monkeypatch.setattr(
            EpisodeLog,
            name,
            lambda *given, plain=plain, name=name, **o: (calls.append(name), plain(*given, **o))[1],
        )
    made = distill(runs / "whole", runs / "base", name="one-by-one", num_updates=1, runs_dir=runs, evaluate=False)
    assert calls[: 2 * made.num_episodes] == ["load", "commit"] * made.num_episodes


def test_failed_distilling_leaves_no_run_with_half_of_the_episodes(runs, monkeypatch):
    monkeypatch.setattr(EpisodeLog, "commit", lambda *given: (_ for _ in ()).throw(StoreError("the disk is full")))
    with pytest.raises(StoreError, match="the disk is full"):
        distill(runs / "whole", runs / "base", name="half", num_updates=1, runs_dir=runs, evaluate=False)
    assert not (runs / "half").exists()


def test_gate_rejects_a_candidate_that_it_cannot_tell_from_the_deployed_one(runs):
    decision = deploy(runs / "base", runs / "whole", num_episodes=2, runs_dir=runs)
    assert not decision.deployed
    assert deployment_of(runs / "base").deployed.weights == str(runs / "base")


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:for stages")  # torch, when only the shapes of a network are made
def test_residual_learns_from_cached_image_features(tmp_path):
    save_backbone(ResNet(width=8), tmp_path / "eye.safetensors", arch="resnet10")
    arm, with_camera = 'FakeArm"}', 'FakeArm", image_size: [64, 64]}'
    launch(tmp_path, BASE.replace(arm, with_camera), "base", train=True)
    encoder = f"{{type: frozen, file: {tmp_path / 'eye.safetensors'}, arch: resnet10, stride: 32, features: 8}}"
    seeing = f"hidden: [16], inputs: [ee_pose, goal, front], encoder: {encoder}}}\nalgorithm:"
    text = RESIDUAL.replace(arm, with_camera).replace("hidden: [16]}\nalgorithm:", seeing)
    run = launch(tmp_path, text, "seeing")
    policy = dovetail.open(run).policy()._policy
    assert set(policy.feature_specs) == {"front"}  # the replay has features, so no update encodes an image
    assert {"residual", "encoder"} <= set(policy.components)  # the trained head reads them
    assert float(policy.residual.share) == 1.0
    assert all(np.isfinite(one.column("observation/proposal")).all() for one in episodes(run))
