"""A VLA that others build on: DSRL chooses its initial noise, and RLT reads its embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.learn.algorithms.dsrl import DSRL, DSRLConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.trainable import HasEmbeddings, Steerable
from dovetail.testing import check_algorithm
from support.small_vlas import SMALL_VLAS, write_small_vla
from support.toy_arm import ROBOT

ROWS, HORIZON, NUM_ACTIONS = 4, 3, 2
DETERMINISTIC = ActContext(deterministic=True)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: write_small_vla(name, root / name, horizon=HORIZON) for name in SMALL_VLAS}


@pytest.fixture
def make(folders):
    def make_policy(family="pi0", *, steering={}, seed=3, **settings):  # noqa: B006
        policy = SMALL_VLAS[family].make(
            folders[family],
            robot=ROBOT,
            seed=seed,
            state=("joint_pos", "force"),
            fit_stats=True,
            num_flow_steps=2,
            steering=steering,
            **settings,
        )
        rng = np.random.default_rng(0)
        sizes = {"joint_pos": 3, "force": 2, "action": 2}
        policy.fit_normalizer({key: rng.normal(size=(50, n)).astype(np.float32) for key, n in sizes.items()})
        return policy

    return make_policy


def observations(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "joint_pos": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "force": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "front": rng.integers(0, 256, (ROWS, 20, 16, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt("push the red cube")] * ROWS),
    }


def tensors(seed=0):
    return {key: torch.from_numpy(value) for key, value in observations(seed).items()}


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    before, after = tensors(2 * seed), tensors(2 * seed + 1)
    return {
        **{f"observation/{key}": value for key, value in before.items() if key != "prompt"},
        **{f"next/{key}": value for key, value in after.items() if key != "prompt"},
        "prompt": before["prompt"],
        "action": torch.from_numpy(rng.uniform(0.0, 0.5, (ROWS, HORIZON, NUM_ACTIONS)).astype(np.float32)),
        "action/mask": torch.ones(ROWS, HORIZON, dtype=torch.bool),
        "human": torch.zeros(ROWS, HORIZON, dtype=torch.bool),
        "reward": torch.tensor([0.0, 1.0, 0.0, 0.5]),
        "discount": torch.tensor([0.5, 0.0, 0.25, 1.0]),
    }


def dsrl(policy, seed=0, **config):
    small = {"batch_size": ROWS, "hidden": (16,), "actor_every": 1}
    return DSRL(DSRLConfig(**(small | config)), policy=policy, seed=seed)


def test_steering_is_a_choice_of_the_config(make):
    assert isinstance(make(), Steerable) and make().steering is not None
    plain = make(steering=None)
    assert "steering" not in plain.components
    with pytest.raises(UsageError, match=r"'pi0' has none\. Set policy\.type=steered, or policy\.steering"):
        dsrl(plain)


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_chunks_start_from_the_chosen_noise(make, family):
    """Acting with engaged steering equals `chunks_from_noise` of the same noise, in the robot's units."""
    policy = make(family)
    assert policy.num_noise == HORIZON * NUM_ACTIONS
    torch.nn.init.normal_(policy.steering.net[-1].weight, generator=torch.Generator().manual_seed(0))
    untouched = policy.act(observations(), DETERMINISTIC).actions
    policy.steering.engaged.fill_(1.0)
    s, inputs = policy.steering_inputs(tensors())
    assert s.shape == (ROWS, policy.num_features)
    low, high = ROBOT.action.bounds
    for context, noise in (
        (DETERMINISTIC, policy.steering.most_likely(s)),
        (ActContext(seed=7), policy.steering.sample(s, generator=torch.Generator().manual_seed(7))[0]),
    ):
        chunks = policy.chunks_from_noise(inputs, noise).detach().numpy()
        assert chunks.shape == (ROWS, HORIZON, NUM_ACTIONS)
        expected = np.clip(policy._setup.action.revert(chunks), low, high)
        actions = policy.act(observations(), context).actions
        np.testing.assert_allclose(actions, expected, atol=1e-5)
        assert not np.allclose(actions, untouched)


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_chunks_from_noise_are_those_of_the_sampler(make, family):
    policy = make(family)
    noise = torch.randn(ROWS, HORIZON * NUM_ACTIONS, generator=torch.Generator().manual_seed(0))
    _, inputs = policy.steering_inputs(tensors())
    whole = torch.nn.functional.pad(noise.view(ROWS, HORIZON, NUM_ACTIONS), (0, 32 - NUM_ACTIONS))
    sampled = policy._sampler(policy._network_inputs(policy.features(tensors()))._replace(noise=whole))
    low, high = (torch.from_numpy(policy._setup.action.apply(limit)) for limit in ROBOT.action.bounds)
    torch.testing.assert_close(
        policy.chunks_from_noise(inputs, noise), sampled[..., :NUM_ACTIONS].clamp(low, high)
    )


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_critics_see_of_a_chunk_what_the_robot_executes(make, family):
    """Regression: the chunk of a large noise was executed within the robot's limits, but valued beyond them. The replay has
    what was executed."""
    policy = make(family, steering={"max_noise": 3.0}, action_axes=("axis1", "axis0"))
    policy.steering.engaged.fill_(1.0)
    s, inputs = policy.steering_inputs(tensors())
    noise = policy.steering.sample(s, generator=torch.Generator().manual_seed(7))[0]
    executed = policy.act(observations(), ActContext(seed=7)).actions
    low, high = ROBOT.action.bounds
    at_limit = (executed == low) | (executed == high)
    assert 0.1 < at_limit.mean() < 0.9
    expected = policy.normalize_actions(torch.from_numpy(executed), tensors())
    torch.testing.assert_close(policy.chunks_from_noise(inputs, noise), expected, rtol=1e-4, atol=1e-4)


def test_repeated_noise_has_the_size_of_one_action(make):
    policy = make(steering={"repeat": True})
    assert policy.num_noise == NUM_ACTIONS
    noise = torch.randn(ROWS, NUM_ACTIONS, generator=torch.Generator().manual_seed(0))
    _, inputs = policy.steering_inputs(tensors())
    whole = make().chunks_from_noise(inputs, noise.repeat(1, HORIZON))
    torch.testing.assert_close(policy.chunks_from_noise(inputs, noise), whole)


def test_critic_target_by_hand(make):
    policy = make()
    algorithm, batch = dsrl(policy), make_batch()
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    prompt = {"prompt": batch["prompt"]}
    with torch.no_grad():
        of = {
            k: {n.removeprefix(f"{k}/"): v for n, v in batch.items() if n.startswith(f"{k}/")}
            for k in ("observation", "next")
        }
        s, _ = policy.steering_inputs({**of["observation"], **prompt})
        s_next, inputs = policy.steering_inputs({**of["next"], **prompt})
        both = torch.cat((s, s_next))  # the first batch gives the statistics of the features
        std = both.std(0, correction=0).clamp(min=0.01)
        s, s_next = (((one - both.mean(0)) / std).clamp(-5.0, 5.0) for one in (s, s_next))
        w, _ = policy.steering.sample(s_next, generator=generator)
        chunks = policy.chunks_from_noise(inputs, w).flatten(1)
        y = batch["reward"] + batch["discount"] * algorithm._target(torch.cat((s_next, chunks), 1)).amin(0)
        executed = policy.normalize_actions(batch["action"], of["observation"]).flatten(1)
        q = algorithm._critic(torch.cat((s, executed), 1))
    assert algorithm.update(batch)["critic_loss"] == pytest.approx(float((q - y).square().mean()), rel=1e-4)


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_cloning_trains_the_model_and_dsrl_only_the_steering(make, family):
    policy = make(family)
    before = policy.weights()
    cloning = Imitation(ImitationConfig(batch_size=ROWS), policy=policy)
    cloning.update({**make_batch(), "human": torch.ones(ROWS, HORIZON, dtype=torch.bool)})
    cloned = policy.weights()

    def changed(old, new):
        return {n for n in new if any(not np.array_equal(old[n][k], new[n][k]) for k in new[n])}

    assert changed(before, cloned) >= {"text", "expert"} and "steering" not in changed(before, cloned)
    algorithm = dsrl(policy)
    for number in range(3):
        algorithm.update(make_batch(number))
    assert changed(cloned, algorithm.policy_weights()) == {"steering"}
    other = make(family, seed=4)
    other.load(WeightSnapshot(version=2, components=algorithm.policy_weights(), hashes={}))
    assert other.steering.engaged.item() == 1.0
    assert torch.equal(other.steering.scale, policy.steering.scale) and other.steering.scale.all()


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_keeps_the_algorithm_contract(make, family):
    check_algorithm(lambda: dsrl(make(family)), robot=ROBOT, num_updates=3)


@pytest.mark.parametrize("family", SMALL_VLAS)
def test_embeddings_are_those_before_the_last_layer_and_tell_prompts_apart(make, family):
    policy = make(family, steering=None)
    assert isinstance(policy, HasEmbeddings)
    found, mask = policy.embeddings(observations())
    assert found.shape == (ROWS, mask.shape[1], policy.embedding_width)
    s, _ = policy.steering_inputs(tensors())
    # the flat features are their normalized mean
    mean = torch.where(mask[..., None], found, 0.0).sum(1)
    expected = mean / mean.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(s[:, : policy.embedding_width], expected, rtol=1e-4, atol=1e-4)
    blue = {**observations(), "prompt": np.stack([encode_prompt("push the blue cube")] * ROWS)}
    assert not torch.allclose(policy.embeddings(blue)[0], found)


@pytest.mark.extended
@pytest.mark.parametrize("repeat", [False, True])
def test_bimodal_vla_is_steered_to_the_rewarded_mode(make, repeat):
    """Demonstrations go left or right. Only one side is rewarded, depending on the state."""
    rows, rng = 32, np.random.default_rng(0)
    policy = make(steering={"hidden": (32,), "repeat": repeat}, freeze_vision=True)

    def look(num):
        seen = {key: np.repeat(value[:1], num, 0) for key, value in observations().items()}
        sides = rng.choice((-1.0, 1.0), num).astype(np.float32)
        return {**seen, "joint_pos": sides[:, None].repeat(3, 1)}, sides

    def batch(seen, actions, reward):
        keys = [key for key in seen if key != "prompt"]
        arrays = {f"{side}/{key}": seen[key] for side in ("observation", "next") for key in keys}
        arrays |= {"prompt": seen["prompt"], "action": actions, "reward": reward, "discount": 0.0 * reward}
        ones = torch.ones(len(reward), HORIZON, dtype=torch.bool)
        return {"action/mask": ones, "human": ones, **{key: torch.from_numpy(v) for key, v in arrays.items()}}

    def rewards(actions, sides):
        return (actions[..., 0].mean(1) * sides > 0.2).astype(np.float32)

    def success():
        seen, sides = look(200)
        return rewards(policy.act(seen, ActContext(seed=0)).actions, sides).mean()

    cloning = Imitation(ImitationConfig(batch_size=rows, lr=2e-3, max_grad_norm=1.0), policy=policy)
    for _ in range(150):
        seen, _ = look(rows)
        demos = np.full((rows, HORIZON, NUM_ACTIONS), 0.2, np.float32)
        demos[..., 0] = rng.choice((-0.8, 0.8), (rows, 1))
        cloning.update(batch(seen, demos, np.zeros(rows, np.float32)))
    assert 0.25 < success() < 0.75

    seen, sides = look(1024)  # the replay: chunks of the model's own noise
    actions = policy.act(seen, ActContext(seed=1)).actions
    reward = rewards(actions, sides)
    algorithm = dsrl(policy, batch_size=rows, hidden=(64,), lr=3e-3, actor_after=50, temperature=0.001)
    for _ in range(200):
        drawn = rng.integers(0, len(reward), rows)
        algorithm.update(batch({key: v[drawn] for key, v in seen.items()}, actions[drawn], reward[drawn]))
    assert success() > 0.9
