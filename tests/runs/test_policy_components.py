"""Policies whose components come from checkpoints, frozen or trained."""

import pickle
import shutil
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
import torch

from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.disk import sha256
from dovetail.core.errors import DovetailError, StoreError, UsageError
from dovetail.core.frozen_base import referenced_base
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.tensor_files import read_tensors
from dovetail.core.types import WeightSnapshot
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.policy_components import build_policy, read_component
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(3,)), "front": ArraySpec(shape=(20, 16, 3), dtype="uint8")},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
SMALL = {
    "gaussian_mlp": {"hidden": [8]},
    "flow": {
        "hidden": 8,
        "num_layers": 1,
        "horizon": 2,
        "encoder": {"features": 4},
        "inputs": ["joint_pos", "front"],
    },
    "flow_actor": {"hidden": 8, "num_layers": 1},
    "steered": {"hidden": 8, "num_layers": 1, "horizon": 2, "steering_hidden": [8]},
    "actor_critic": {"hidden": [8], "value_hidden": [8]},
    "valued_flow": {"hidden": 8, "num_layers": 1, "horizon": 2, "value_hidden": [8]},
    "flow_actor_critic": {"hidden": 8, "num_layers": 1, "value_hidden": [8]},
}


def make(kind="flow", seed=0, **components):
    section = PluginSection.parse("policy", {"type": kind, **SMALL[kind], "components": components})
    return build_policy(section, robot=ROBOT, seed=seed)


def arrays_equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in ours)


def save(path, arrays):
    path.write_bytes(safetensors.numpy.save(dict(arrays)))
    return str(path)


# ---- statistics in the config


@pytest.mark.parametrize("kind", SMALL)
def test_normalization_of_the_config_is_that_of_a_new_policy(kind):
    known = {"joint_pos": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 2.0, 1e-9]}}
    section = PluginSection.parse("policy", {"type": kind, **SMALL[kind], "normalization": known})
    normalizer = build_policy(section, robot=ROBOT, seed=0).weights()["normalizer"]
    np.testing.assert_allclose(normalizer["mean/joint_pos"], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(normalizer["std/joint_pos"], [0.5, 2.0, 1e-3])  # limits the gain


@pytest.mark.parametrize("known", [{"joint_pos": {"mean": [0], "std": [1]}}, {"front": {"mean": [0], "std": [1]}}])
def test_normalization_that_does_not_fit_is_refused(known):
    section = PluginSection.parse("policy", {"type": "gaussian_mlp", "normalization": known})
    with pytest.raises(UsageError, match="1 means and 1 stds"):
        build_policy(section, robot=ROBOT, seed=0)


# ---- sources of a component


@pytest.mark.parametrize("kind", SMALL)
def test_every_component_can_come_from_its_own_file(kind, tmp_path):
    original = make(kind, seed=1).weights()
    for name, arrays in original.items():
        source = save(tmp_path / f"{name}.safetensors", arrays)
        taken = make(kind, **{name: {"checkpoint": source}}).weights()
        assert arrays_equal(taken[name], arrays)
        for other in original.keys() - {name, "normalizer"}:
            assert not arrays_equal(taken[other], original[other])  # initialized from its seed


def test_component_can_come_from_a_run_weights_version_or_checkpoint(tmp_path):
    old, new = make(seed=1).weights(), make(seed=2).weights()
    store = DiskWeightStore(tmp_path / "run" / "weights")
    store.publish(old)
    store.publish(new)
    flat = {f"algorithm/policy/{part}/{name}": v for part, of in old.items() for name, v in of.items()}
    save_checkpoint(tmp_path / "run" / "checkpoints" / "last", {**flat, "learner/counters": np.zeros(2)}, facts={})
    for source, expected in {
        "run": new,
        "run/weights": new,
        "run/weights/v00000001.json": old,
        "run/checkpoints/last": old,
    }.items():
        assert arrays_equal(read_component(tmp_path / source, "encoder"), expected["encoder"])
        assert arrays_equal(
            make(encoder={"checkpoint": str(tmp_path / source)}).weights()["encoder"], expected["encoder"]
        )


def test_loaded_statistics_are_not_fitted_again(tmp_path):
    path = tmp_path / "old_stats.pkl"
    path.write_bytes(
        pickle.dumps({"joint_pos": {"mean": [1, 2, 3], "std": [1, 1, 2]}, "action": {"mean": 0, "std": 1}})
    )
    policy = make(normalizer={"checkpoint": str(path)})
    policy.fit_normalizer({"joint_pos": np.full((4, 3), 9.0)})  # as a run does with its demonstrations
    observation = {
        "joint_pos": torch.tensor([[2.0, 2.0, 1.0]]),
        "front": torch.zeros(1, 20, 16, 3, dtype=torch.uint8),
    }
    assert policy.features(observation)[0, :3].tolist() == [1.0, 0.0, -1.0]
    fitted = make(normalizer={"checkpoint": str(path), "frozen": False})
    fitted.fit_normalizer({"joint_pos": np.full((4, 3), 9.0)})
    assert fitted.weights()["normalizer"]["mean/joint_pos"].tolist() == [9.0, 9.0, 9.0]


# ---- refused components


@pytest.mark.parametrize(
    ("components", "because"),
    [
        ({"encodr": {}}, r"no component 'encodr'. Did you mean 'encoder'\? It has actor, encoder, normalizer"),
        ({"zzz": {}}, "no component 'zzz'. Valid: actor, encoder, normalizer"),
        ({"actor": {"checkpoint": "gone.safetensors"}}, "gone.safetensors does not exist"),
        ({"actor": {"checkpoint": "notes.txt"}}, "notes.txt is not a file of weights"),
        ({"actor": {"checkpoint": "stats.json"}}, "stats.json is not a file of weights: expected .safetensors, .pth"),
        ({"actor": {"checkpoint": "empty"}}, "empty holds no weights"),
        ({"actor": {"checkpoint": "junk.safetensors"}}, "not a safetensors file"),
        ({"actor": {"checkpoint": "other.safetensors"}}, "does not fit policy 'flow': component 'actor' lacks"),
        ({"actor": {"checkpoint": "wide.safetensors"}}, r"actor/chunk.weight is \(9, 4\), should be \(8, 4\)"),
        ({"actor": {"checkpoint": "nan.safetensors"}}, "non-finite"),
        ({"normalizer": {"checkpoint": "stats.json"}}, "component 'normalizer' lacks mean/joint_pos, std/joint_pos"),
        ({"steering": {"checkpoint": "run"}}, "no component 'steering'"),
        ({"encoder": {"checkpoint": "run"}}, "hold no component 'encoder'"),
    ],
)  # fmt: skip
def test_component_that_does_not_fit_is_refused(components, because, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = make(seed=1).weights()
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "stats.json").write_text('{"gripper": {"mean": [0.0], "std": [1.0]}}')
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    save(tmp_path / "other.safetensors", weights["encoder"])
    save(tmp_path / "wide.safetensors", {**weights["actor"], "chunk.weight": np.zeros((9, 4), np.float32)})
    save(tmp_path / "nan.safetensors", {k: np.full_like(v, np.nan) for k, v in weights["actor"].items()})
    DiskWeightStore(tmp_path / "run" / "weights").publish({"actor": weights["actor"]})
    with pytest.raises(DovetailError, match=because) as refusal:
        make(**components)
    assert "\n" not in str(refusal.value)


def test_misspelled_setting_is_named():
    with pytest.raises(
        UsageError,
        match=r"unknown key 'policy.components.actor.frozn'.*Did you mean 'policy.components.actor.frozen'",
    ):
        load(["push-cube"], ["policy.components.actor.frozn=true"])


def test_failed_load_changes_nothing(tmp_path):
    weights = make(seed=1).weights()
    good = save(tmp_path / "good.safetensors", weights["encoder"])
    bad = save(tmp_path / "bad.safetensors", weights["normalizer"])
    section = PluginSection.parse(
        "policy",
        {
            "type": "flow",
            **SMALL["flow"],
            "components": {"encoder": {"checkpoint": good}, "actor": {"checkpoint": bad}},
        },
    )
    policy = section.build(robot=ROBOT, seed=0)
    before = policy.weights()
    with pytest.raises(StoreError):
        policy.load_components(lambda name, source: read_component(tmp_path / source, name))
    assert all(arrays_equal(policy.weights()[name], before[name]) for name in before)


# ---- frozen components in versions of weights


def frozen_flow(path, *, seed, **sizes):
    """A steered flow whose velocity network comes from a file."""
    config = {"type": "steered", "components": {"actor": {"checkpoint": str(path), "frozen": True}}, **sizes}
    return build_policy(PluginSection.parse("policy", config), robot=ROBOT, seed=seed)


def test_weights_are_refused_by_a_policy_with_another_frozen_component(tmp_path):
    for seed in (1, 2):
        save(tmp_path / f"{seed}.safetensors", make("steered", seed=seed).weights()["actor"])
    trained = frozen_flow(tmp_path / "1.safetensors", seed=5, **SMALL["steered"])
    other = frozen_flow(tmp_path / "2.safetensors", seed=5, **SMALL["steered"])
    snapshot = WeightSnapshot(version=3, components=trained.weights(), hashes={})
    with pytest.raises(StoreError, match=r"version 3 .* another frozen component 'actor' .* Use the checkpoint"):
        other.load(snapshot)
    with pytest.raises(StoreError, match="'actor' is not in them, because it was frozen"):
        make("steered").load(snapshot)
    whole = make("steered", seed=1).weights()  # as old versions have it
    trained.load(WeightSnapshot(version=3, components=whole, hashes={}))
    assert arrays_equal(trained.weights()["steering"], whole["steering"])
    with pytest.raises(StoreError, match="another frozen component"):
        trained.load(WeightSnapshot(version=3, components=make("steered", seed=2).weights(), hashes={}))


def publish_cost(tmp_path, **sizes):
    """Megabytes of the frozen and the trained networks, then per version: megabytes on disk, and allocated at the peak."""
    original = build_policy(PluginSection.parse("policy", {"type": "steered", **sizes}), robot=ROBOT, seed=0)
    path = tmp_path / "base.safetensors"
    save(path, original.weights()["actor"])
    policy = frozen_flow(path, seed=0, **sizes)
    store = DiskWeightStore(tmp_path / "weights", keep=9)
    folder = tmp_path / "weights"
    store.publish(policy.weights())
    before = size_mb(folder)
    for parameter in policy.components["steering"].parameters():
        parameter.data += 1.0
    tracemalloc.start()
    store.publish(policy.weights())
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    frozen_mb, trained_mb = (
        sum(p.nbytes for p in policy.components[name].parameters()) / 1e6 for name in ("actor", "steering")
    )
    return frozen_mb, trained_mb, size_mb(folder) - before, peak_mb


def size_mb(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def test_version_costs_what_is_trained(tmp_path):
    frozen_mb, trained_mb, on_disk_mb, peak_mb = publish_cost(
        tmp_path, hidden=800, num_layers=3, horizon=2, steering_hidden=[350, 350]
    )
    assert frozen_mb > 5.0 and 0.48 < trained_mb < 0.55
    assert trained_mb < on_disk_mb < 1.01 * trained_mb + 0.02
    assert trained_mb < peak_mb < 1.2 * trained_mb + 0.1  # one copy on the host, of the trained part only


@pytest.mark.extended
def test_version_of_20_mb_on_a_frozen_base_of_200_mb_costs_20_mb(tmp_path):
    frozen_mb, trained_mb, on_disk_mb, peak_mb = publish_cost(
        tmp_path, hidden=5000, num_layers=3, horizon=2, steering_hidden=[2230, 2230]
    )
    assert frozen_mb > 200.0 and 19.5 < trained_mb < 21.0
    assert trained_mb < on_disk_mb < 1.01 * trained_mb
    assert trained_mb < peak_mb < 1.1 * trained_mb


# ---- runs


@pytest.fixture
def pretrained(tmp_path):
    """A velocity network from another run."""
    config = load(["peg-insertion-sac-flow"], ["policy.hidden=16", "run.seed=9"])
    assembly = build_assembly(config)
    try:
        DiskWeightStore(tmp_path / "pretrained" / "weights").publish(assembly.trainable().weights())
    finally:
        assembly.close()
    return tmp_path / "pretrained"


def settings(source):
    return [
        "policy.hidden=16",
        f"policy.components.sigma.checkpoint={source}",
        "policy.components.sigma.frozen=true",
        "algorithm.hidden=[16]",
        "algorithm.batch_size=8",
        "algorithm.actor_after=0",
        "run.demos=1",
        "run.untrained_episodes=0",
        "run.eval_episodes=1",
        "run.video_episodes=0",
        "learner.bc_updates=5",
        "learner.warmup_updates=8",
        "learner.utd=0.05",
    ]


def run(folder, config):
    InlineRun(RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, config)).run()


def test_frozen_components_do_not_change_in_a_run_and_its_resume(pretrained, tmp_path):
    original = DiskWeightStore(pretrained / "weights").load(1).components
    config = load(["peg-insertion-sac-flow"], [*settings(pretrained), "run.env_steps=1"])
    folder = tmp_path / "runs" / "first"
    run(folder, config)
    shutil.rmtree(pretrained)  # a run keeps a copy
    (folder / "evaluations" / "after.json").unlink()  # as if it had been stopped before
    checkpoint, _ = load_checkpoint(folder / "checkpoints" / "last")
    copy = folder / "parts" / "sigma.safetensors"
    assert referenced_base(_of(checkpoint, "algorithm/policy/sigma/")) == sha256(copy.read_bytes())
    assert arrays_equal(read_tensors(copy), original["sigma"])
    assert not any("averaged/sigma" in name for name in checkpoint)
    run(folder, config)
    store = DiskWeightStore(folder / "weights", keep=99)
    versions = [store.load(version) for version in store.versions()]
    assert len(versions) > 2
    digest = sha256(copy.read_bytes())
    assert all(referenced_base(version.components["sigma"]) == digest for version in versions)
    assert len({version.hashes["sigma"] for version in versions}) == 1  # published once
    assert len({version.hashes["velocity"] for version in versions}) > 1
    assembly = build_assembly(config, components=folder / "parts")
    try:  # `dovetail eval RUN/checkpoints/last` needs no more than the run
        found = find_weights(str(folder / "checkpoints" / "last"), version=None, runs_dir=folder.parent)
        assert referenced_base(found.snapshot(assembly).components["sigma"]) == digest
    finally:
        assembly.close()
    for source in (folder, folder / "weights", folder / "checkpoints" / "last"):  # as a start of another run
        assert arrays_equal(read_component(source, "sigma"), original["sigma"])
    copy.unlink()
    with pytest.raises(StoreError, match=r"has component 'sigma' only by its sha256 .* Name the checkpoint"):
        read_component(folder, "sigma")


def _of(state, prefix):
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
