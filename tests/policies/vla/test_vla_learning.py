"""Every VLA learns in place: which weights change, what is published, LoRA, cached vision, resume, two ranks."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.frozen_base import referenced_base
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.setup import set_up
from dovetail.policies.trainable import flat_features
from dovetail.policies.vla.checkpoints.adapters import read_adapter, write_adapter
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.fitted_statistics import compute_statistics
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from dovetail.policies.vla.settings import LoraConfig, NewModelConfig, Pi0Config, Pi05Config
from support.small_vlas import SMALL_VLAS, write_small_vla
from support.vla_rank import HORIZON, NUM_ACTIONS, ROWS, arm, make_batch


@pytest.fixture(scope="module", params=SMALL_VLAS)
def family(request):
    return SMALL_VLAS[request.param]


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return write_small_vla(
        family.name, tmp_path_factory.mktemp(family.name) / "folder", horizon=HORIZON, stats=(9, 6)
    )


@pytest.fixture(scope="module")
def robot():
    return arm()


@pytest.fixture
def make(family, folder, robot):
    def make_policy(**settings):
        return family.make(folder, robot=robot, state=("joint_pos", "gripper"), **settings)

    return make_policy


def observations_of(batch):
    found = {k.removeprefix("observation/"): v for k, v in batch.items() if k.startswith("observation/")}
    return {**found, "prompt": batch["prompt"]}


def values(policy):
    return {name: value.detach().clone() for name, value in policy.network.named_parameters()}


def learn(policy, *, updates=2, algorithm=Imitation, config=None, **settings):
    learner = algorithm(config or ImitationConfig(batch_size=ROWS, lr=1e-3), policy=policy, seed=0)
    set_up(learner, name=learner.name, **settings)
    losses = [learner.update(make_batch(seed=number))["imitation_loss"] for number in range(updates)]
    return learner, losses


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({"train": "full"}, {"vision", "text", "expert"}),
        ({"train": "full", "freeze_vision": True}, {"text", "expert"}),
        ({"train": "expert"}, {"expert"}),
    ],
)
def test_only_trained_components_change_and_are_published(make, settings, trained):
    policy = make(**settings)
    parts = policy.components
    before = {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()}
    learn(policy)
    for name, part in parts.items():
        changed = any(not torch.equal(a, b) for a, b in zip(before[name], part.parameters(), strict=True))
        assert changed == (name in trained), name
    published = policy.weights()
    assert {name for name, arrays in published.items() if referenced_base(arrays)} == parts.keys() - trained
    other = make(**settings)
    other.load(WeightSnapshot(version=7, components=published, hashes={}))
    observations = {key: value.numpy() for key, value in observations_of(make_batch()).items()}
    ours, theirs = (one.act(observations, ActContext(seed=1)) for one in (policy, other))
    assert np.array_equal(ours.actions, theirs.actions) and theirs.policy_version == 7


def test_a_frozen_base_of_another_folder_is_refused(make, family, folder, robot, tmp_path):
    published = make(train="expert").weights()
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = {key: value * 1.01 for key, value in load_file(other / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors")
    policy = family.make(other, robot=robot, state=("joint_pos", "gripper"), train="expert")
    with pytest.raises(StoreError, match="another frozen component"):
        policy.load(WeightSnapshot(version=1, components=published, hashes={}))


@pytest.mark.parametrize(("size", "millions"), [("tiny", 1.2), ("small", 20.9)])
def test_sizes_of_new_models(tmp_path, size, millions):
    written = write_new_model(tmp_path / size, Pi0Policy.family, size=size, horizon=HORIZON)
    assert written / 1e6 == pytest.approx(millions, abs=0.1)
    checkpoint = open_checkpoint(tmp_path / size, Pi0Policy.family)
    assert checkpoint.sizes.text.num_heads == {"tiny": 4, "small": 6}[size]


def test_lora_trains_only_its_updates_and_merged_equals_applied(make, tmp_path):
    policy = make(train="lora", lora=LoraConfig(rank=2, alpha=4.0))
    before = values(policy)
    learn(policy)
    assert list(policy.components) == ["lora"] and set(policy.weights()) == {"lora", "base", "normalizer"}
    assert referenced_base(policy.weights()["base"])
    after = values(policy)
    originals = [name for name in before if not name.endswith((".down", ".up"))]
    assert originals and all(torch.equal(before[name], after[name]) for name in originals if name in after)
    assert any(update.up.abs().max() > 0 for update in policy.lora.updates.values())

    observations = {key: value.numpy() for key, value in observations_of(make_batch()).items()}
    applied = policy.act(observations, ActContext(seed=1)).actions
    write_adapter(tmp_path / "adapter", policy.lora, base="pi0")
    assert len(read_adapter(tmp_path / "adapter").pairs) == len(policy.lora.updates)
    merged = make(adapter=str(tmp_path / "adapter")).act(observations, ActContext(seed=1)).actions
    unadapted = make().act(observations, ActContext(seed=1)).actions
    np.testing.assert_allclose(merged, applied, atol=1e-6)
    assert np.abs(unadapted - applied).max() > 1e-5


def test_cached_vision_equals_images(make):
    policy = make(train="expert", cache_vision=True)
    (spec,) = policy.feature_specs.values()
    batch = make_batch()
    tokens = policy.encode("front", batch["observation/front"].numpy())
    assert tokens.shape[1:] == spec.shape and policy.feature_digest
    cached = {**batch, "observation/front": torch.from_numpy(tokens)}
    losses = []
    for given in (batch, cached):
        observations = observations_of(given)
        actions = policy.normalize_actions(given["action"], observations)
        generator = torch.Generator().manual_seed(5)
        losses.append(policy.imitation_loss(policy.features(observations), actions, generator=generator))
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("algorithm", "config", "settings"),
    [
        (Imitation, ImitationConfig(batch_size=ROWS, lr=1e-3), {"train": "expert"}),
        (Imitation, ImitationConfig(batch_size=ROWS, lr=1e-3), {"train": "lora", "lora": LoraConfig(rank=2)}),
        (HGDAgger, HGDAggerConfig(batch_size=ROWS, average=0.9), {"train": "full", "freeze_vision": True}),
        (HiORS, HiORSConfig(batch_size=ROWS, average=0.9, updates_per_round=2), {"train": "expert"}),
    ],
    ids=["imitation", "imitation, lora", "hg_dagger, average", "hi_ors, average"],
)
def test_resume_is_bit_exact(make, algorithm, config, settings):
    given = {"algorithm": algorithm, "config": config}
    straight, _ = learn(make(**settings), updates=3, **given)
    first, _ = learn(make(**settings), updates=2, **given)
    resumed, _ = learn(make(**settings), updates=0, **given)
    resumed.load_state_dict(first.state_dict())
    resumed.update(make_batch(seed=2))
    expected, found = straight.state_dict(), resumed.state_dict()
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        (HGDAgger, HGDAggerConfig(batch_size=ROWS)),
        (HiORS, HiORSConfig(batch_size=ROWS, min_motion_std=0.0)),
    ],
)
def test_corrections_and_accepted_episodes_train_it(make, algorithm, config):
    policy = make(train="expert")
    before = values(policy)
    _, (loss,) = learn(policy, updates=1, algorithm=algorithm, config=config)
    trained = {id(p) for p in policy.components["expert"].parameters()}
    assert loss > 0.0 and trained
    changed = {name for name, value in values(policy).items() if not torch.equal(before[name], value)}
    expert = {name for name, value in policy.network.named_parameters() if id(value) in trained}
    assert changed and changed <= expert


def test_axes_that_a_person_did_not_drive_do_not_count_in_any_order_of_axes(make, robot):
    """The mask has the robot's order, and the loss the checkpoint's."""
    policy = make(action_axes=tuple(reversed(robot.action.names)))
    observations = observations_of(make_batch())
    features = policy.features(observations)
    mask = torch.ones(ROWS, HORIZON, NUM_ACTIONS, dtype=torch.bool)
    mask[..., 0] = False  # the robot's first axis, which is the checkpoint's last one

    def loss(axis):
        actions = torch.zeros(ROWS, HORIZON, NUM_ACTIONS)
        if axis is not None:
            actions[..., axis] = 0.01
        normalized = policy.normalize_actions(actions, observations)
        return policy.imitation_loss(features, normalized, mask, generator=torch.Generator().manual_seed(0)).item()

    assert loss(0) == loss(None)
    assert loss(NUM_ACTIONS - 1) != loss(None)


def test_recomputed_layers_give_the_same_gradients(make):
    gradients = []
    for recompute in (False, True):
        policy = make(recompute_layers=recompute)
        learner = Imitation(ImitationConfig(batch_size=ROWS), policy=policy, seed=0)
        learner._optimizer.step = lambda: None
        learner.update(make_batch())
        gradients.append([p.grad for p in learner._parameters])
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_bf16_computes_near_fp32_with_float32_parameters(make):
    _, exact = learn(make(), updates=1)
    learner, rounded = learn(make(), updates=1, precision="bf16")
    assert rounded[0] == pytest.approx(exact[0], rel=0.02) and rounded[0] != exact[0]
    assert {p.dtype for p in learner._parameters} == {torch.float32}


def test_micro_batches_equal_one_batch(make):
    """Data parallel uses the same sums: a mean over known actions, not a mean of means."""
    gradients = []
    for accumulate in (1, 3):
        learner = Imitation(ImitationConfig(batch_size=ROWS), policy=make(), seed=0)
        set_up(learner, name="imitation", accumulate=accumulate)
        learner._generator = torch.Generator().manual_seed(0)
        policy = learner._policy
        batch = make_batch()
        policy.imitation_loss = fixed_loss(policy)
        learner._optimizer.step = lambda: None
        learner.update(batch)
        gradients.append([p.grad for p in learner._parameters])
    for a, b in zip(*gradients, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def fixed_loss(policy):
    """The loss at time 0.5 and with zero noise, so that it does not depend on the order of rows."""
    from dovetail.policies.vla.training import flow_matching_errors

    def loss(features, actions, mask=None, *, generator=None):
        known = mask[..., None] & actions.isfinite()
        errors = flow_matching_errors(
            policy.network,
            policy._network_inputs(features),
            torch.where(known, actions, 0.0),
            torch.full((len(actions),), 0.5),
        )
        return (errors * known).sum() / known.sum()

    return loss


def test_two_ranks_compute_the_gradient_of_one(make):
    """Each rank has every second row, and draws the times and noise that one process would draw for them."""

    def gradients(rank, size):
        learner = Imitation(ImitationConfig(batch_size=ROWS), policy=make(train="expert"), seed=0)
        learner.set_parallel(DataParallel(rank=rank, size=size))
        rows = {key: value[rank::size] for key, value in make_batch().items()}
        loss, weight = learner._loss(rows)
        (loss * weight).backward()
        return [p.grad for p in learner._parameters if p.grad is not None]

    whole, *ranks = gradients(0, 1), gradients(0, 2), gradients(1, 2)
    for one, *parts in zip(whole, *ranks, strict=True):
        torch.testing.assert_close(one, sum(parts), rtol=1e-3, atol=1e-5)


def test_statistics_come_from_demonstrations_only_if_the_config_says_so(make):
    columns = {
        "joint_pos": np.arange(70, dtype=np.float32).reshape(10, 7),
        "gripper": np.zeros((10, 2), np.float32),
        "action": np.tile(np.float32([1, -1, 2, -2, 0, 0]), (10, 1)),
    }
    columns["action"][5:] *= 3
    kept = make()
    before = kept.weights()["normalizer"]
    kept.fit_normalizer(columns)
    assert all(np.array_equal(before[key], value) for key, value in kept.weights()["normalizer"].items())
    fitted = make(fit_stats=True)
    fitted.fit_normalizer(columns)
    found = fitted.weights()["normalizer"]
    if "state.q01" in found:  # pi05 uses quantiles: 9 % of the way from 0 to 7, and half of the actions are 1
        assert found["state.q01"][0] == pytest.approx(0.63) and found["state.q99"][0] == pytest.approx(62.37)
        assert found["action.q01"].tolist() == [1, -3, 2, -6, 0, 0] and found["action.q99"][0] == 3.0
        return
    # joint 1: 0, 7, ..., 63: mean 31.5, std 7 * sqrt(8.25); action 1: half 1, half 3
    assert found["state.mean"][0] == pytest.approx(31.5)
    assert found["state.std"][0] == pytest.approx(7 * 8.25**0.5)
    assert found["action.mean"].tolist() == [2, -2, 4, -4, 0, 0] and found["action.std"][0] == 1.0
    assert found["state.std"][7] == pytest.approx(1e-3)  # it does not move


def test_quantiles_by_hand():
    found = compute_statistics(np.arange(101, dtype=np.float32)[:, None])
    assert [float(found[name][0]) for name in ("min", "q01", "q99", "max", "mean")] == [0, 1, 99, 100, 50]


def test_flat_features_tell_prompts_and_states_apart(make):
    policy, batch = make(), make_batch()
    observations = observations_of(batch)
    flat = flat_features(policy, policy.features(observations))
    assert flat.shape == (ROWS, policy.num_features) and not flat.requires_grad
    assert (flat[0] - flat[1]).abs().max() > 1e-3
    tensor = torch.ones(2, 3)
    assert flat_features(policy, tensor) is tensor


@pytest.mark.parametrize("train", ["expert", "lora"])
def test_exported_folder_acts_as_the_trained_policy(make, family, tmp_path, robot, train):
    policy = make(train=train)
    learn(policy)
    observations = {key: value.numpy() for key, value in observations_of(make_batch()).items()}
    expected = policy.act(observations, ActContext(seed=1)).actions
    policy.export(tmp_path / "new")
    assert open_checkpoint(tmp_path / "new").family.name == family.name
    again = family.make(tmp_path / "new", robot=robot, state=("joint_pos", "gripper"))
    np.testing.assert_allclose(again.act(observations, ActContext(seed=1)).actions, expected, atol=1e-6)
    assert np.abs(make().act(observations, ActContext(seed=1)).actions - expected).max() > 1e-5


@pytest.mark.parametrize("name", ["pi0", "pi05"])
def test_new_model_is_small_repeatable_and_needs_statistics(name, robot, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policies = {"pi0": (Pi0Policy, Pi0Config), "pi05": (Pi05Policy, Pi05Config)}
    make, config = policies[name]
    given = {"images": {"base_0_rgb": "front"}, "state": ("joint_pos", "gripper"), "device": "cpu"}
    policy = make(config(new=NewModelConfig(horizon=HORIZON), fit_stats=True, **given), robot=robot)
    assert 0.8e6 < sum(p.numel() for p in policy.network.parameters()) < 3e6
    assert policy.network.action_out.out_features == NUM_ACTIONS  # random weights would move padded axes anywhere
    observations = {key: value.numpy() for key, value in observations_of(make_batch()).items()}
    with pytest.raises(UsageError, match="no statistics before demonstrations"):
        policy.act(observations, ActContext())
    policy.warmup()
    rng = np.random.default_rng(0)
    policy.fit_normalizer({**observations, "action": rng.normal(size=(ROWS, NUM_ACTIONS)).astype(np.float32)})
    assert np.isfinite(policy.act(observations, ActContext()).actions).all()
    learn(policy)
    written = write_new_model(tmp_path / "again", policy.family, horizon=HORIZON, num_actions=NUM_ACTIONS)
    assert written == sum(p.numel() for p in policy.network.parameters())
    cached = tmp_path / "dovetail" / "new_models" / f"{name}-tiny3-horizon{HORIZON}-actions{NUM_ACTIONS}-seed0"
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (cached / file).read_bytes()
    with pytest.raises(ValueError, match="random weights"):
        config(**given)
