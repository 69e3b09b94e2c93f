"""Policy 'vla': a model of the user gets nested observations, acts, and learns by the methods that its class has."""

import math

import numpy as np
import pytest
import torch

from dovetail.config.schema import PluginSection
from dovetail.core.errors import PluginError, SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.ppo import PPO, PPOConfig, executed_density
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.learn.precision import compute_in_bf16
from dovetail.policies.trainable import TrainablePolicy, ValuedPolicy
from support.toy_arm import DETERMINISTIC, ROBOT, observations, snapshot_of

SAMPLED = ActContext(seed=5)


def make(name, *, robot=ROBOT, seed=3, **settings):
    section = {"type": "vla", "model_class": f"support.user_models:{name}", "language": False, **settings}
    return PluginSection.parse("policy", section).build(robot=robot, seed=seed)


def module_of(policy):
    return policy.components["model"].module


# ---- what the model gets


def test_model_gets_nested_observations_with_text():
    policy = make(
        "Echo", inputs=["joint_pos", "front", "depth"], history={"joint_pos": 2}, horizon=3, language=True
    )
    inputs = {
        "joint_pos": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
        "joint_pos/mask": np.array([[False, True], [True, True]]),
        "front": np.full((2, 20, 16, 3), 7, np.uint8),
        "depth": np.full((2, 20, 16, 1), 1500, np.uint16),
        "prompt": np.stack([encode_prompt("push the cube"), encode_prompt("")]),
    }
    chunk = policy.act(inputs, DETERMINISTIC)
    assert chunk.actions.shape == (2, 3, 2)
    assert chunk.actions[0, 0].tolist() == [1.0, 0.25]  # 0 is the middle of the limits
    seen = module_of(policy).seen
    assert seen.batch_size == (2,)
    assert list(seen["language"]) == ["push the cube", ""]
    assert seen["proprio", "joint_pos"].tolist() == [
        [[0, 0, 0], [3, 4, 5]],
        [[6, 7, 8], [9, 10, 10]],
    ]  # clipped to 10
    assert seen["mask", "joint_pos"].tolist() == [[False, True], [True, True]]
    assert seen["rgb", "front"].dtype == torch.uint8
    assert seen["rgb", "front"].shape == (2, 20, 16, 3)
    assert seen["depth", "depth"].unique().tolist() == [1.5]


def test_model_with_a_checkpoint_gets_raw_values():
    raw = make("Echo", inputs=["joint_pos"], checkpoint="model.safetensors")
    raw.fit_normalizer({"joint_pos": np.full((5, 3), 100.0, np.float32)})
    raw.act({"joint_pos": np.full((1, 3), 180.0, np.float32)}, DETERMINISTIC)
    assert module_of(raw).seen["proprio", "joint_pos"].tolist() == [[180.0, 180.0, 180.0]]

    statistics = {"joint_pos": {"mean": [80.0, 80.0, 80.0], "std": [50.0, 50.0, 50.0]}}
    given = make("Echo", inputs=["joint_pos"], checkpoint="model.safetensors", normalization=statistics)
    assert not given._is_raw


def test_constructor_gets_its_arguments_and_the_sizes_it_asks_for():
    policy = make("Acts", inputs=["joint_pos", "force"], horizon=4, model_config={"gain": 0.5})
    model = module_of(policy)
    assert model.mean.in_features == 5
    assert model.mean.out_features == 8
    assert model.gain == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_config": {"action_dim": 7}}, "policy.model_config.action_dim is 7, but the robot needs 2"),
        ({"model_config": {"gian": 2}}, "unexpected keyword argument 'gian'. It takes action_dim, proprio_dim"),
        ({"model_class": "support.user_models:Nothing"}, "has no 'Nothing'. Did you mean"),
        ({"model_class": "no_such_package:Model"}, "cannot import module 'no_such_package'"),
        ({"model_class": "support.toy_arm:ROBOT"}, "should be a class, got a RobotSpec"),
        ({"model_class": "pathlib:Path"}, "should be a subclass of torch.nn.Module"),
        ({"model_class": "torch.nn:Module"}, "'torch.nn:Module' has no forward"),
        (
            {"model_class": "support.user_models:Raises"},
            "cannot be constructed (ZeroDivisionError: division by zero)",
        ),
        ({"model_class": "support.user_models:Half"}, "has bfloat16 parameters"),
    ],
)
def test_wrong_class_or_arguments_are_one_line(settings, message):
    with pytest.raises((PluginError, UsageError)) as caught:
        make("Acts", **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_input_is_refused():
    with pytest.raises(SpecMismatch, match="needs input 'wrist'"):
        make("Acts", inputs=["wrist"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongShape", r"WrongShape.forward should return a tensor \[4, 1, 2\] or \[4, 2\], got \[4, 3\]"),
        ("NoAction", r"NoAction.forward should return a tensor \[4, 1, 2\] or \[4, 2\], got nothing"),
    ],
)
def test_wrong_result_of_forward_is_one_line(name, message):
    with pytest.raises(UsageError, match=message):
        make(name).act(observations(), DETERMINISTIC)


# ---- units


def test_actions_in_robot_units_are_sent_as_they_are():
    policy = make("Constant", action_units="robot", model_config={"action": [2.5, 0.9]})
    actions = policy.act(observations(1), DETERMINISTIC).actions
    assert actions[0, 0].tolist() == pytest.approx([2.5, 0.5])  # limits are -1 to 3 and 0 to 0.5


def test_imitation_in_robot_units_compares_robot_units():
    policy = make("Constant", action_units="robot", model_config={"action": [2.0, 0.5]})
    features = policy.features({key: torch.from_numpy(value) for key, value in observations(1).items()})
    normalized = policy.normalize_actions(torch.tensor([[1.0, 0.25]]))
    assert normalized.tolist() == [[0.0, 0.0]]
    loss = policy.imitation_loss(features, normalized)
    assert loss.item() == pytest.approx((1.0**2 + 0.25**2) / 2)


# ---- abilities


@pytest.mark.parametrize(
    ("name", "settings", "trainable", "valued"),
    [
        ("Acts", {}, False, False),
        ("Imitates", {"horizon": 4}, True, False),
        ("ActsAndValues", {}, True, True),
        ("WithTensorDicts", {}, True, True),
    ],
)
def test_methods_of_the_class_decide_what_the_policy_is(name, settings, trainable, valued):
    policy = make(name, **settings)
    assert isinstance(policy, TrainablePolicy) == trainable
    assert isinstance(policy, ValuedPolicy) == valued


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Acts", "Acts has no get_value and no evaluate_actions. Add it to the class"),
        ("Imitates", "Imitates has no get_value and no evaluate_actions"),
        ("WithoutValue", "WithoutValue has no get_value. Add it"),
    ],
)
def test_ppo_names_the_missing_methods(name, message):
    with pytest.raises(UsageError, match=f"'ppo' cannot train policy 'vla': support.user_models:{message}"):
        PPO(PPOConfig(), policy=make(name))


@pytest.mark.parametrize("horizon", [2, 4])
def test_ppo_takes_chunks_only_if_their_density_is_known(horizon):
    """Other algorithms use such a model as before."""
    PPO(PPOConfig(), policy=make("ChunksWithValues", horizon=horizon))
    policy = make("DensityOfFirstActions", horizon=horizon)
    expected = (
        rf"DensityOfFirstActions does not accept chunks \[B, {horizon}, A\] of policy.horizon={horizon} \(\w+: "
    )
    with pytest.raises(UsageError, match=expected) as caught:
        PPO(PPOConfig(), policy=policy)
    assert "\n" not in str(caught.value)
    chunk = policy.act(observations(), SAMPLED)
    assert chunk.actions.shape == (4, horizon, 2) and not chunk.extras


def test_ppo_refuses_a_learning_rate_for_what_the_model_does_not_have():
    policy = make("ActsAndValues")
    with pytest.raises(UsageError, match=r"algorithm\.value_lr is for a component 'critic'"):
        PPO(PPOConfig(value_lr=1e-3), policy=policy)
    algorithm = PPO(PPOConfig(std_lr=0.5), policy=policy)
    assert algorithm._optimizer.param_groups[1]["params"] == [module_of(policy).log_std]


def test_algorithm_with_critics_of_its_own_refuses_the_policy():
    with pytest.raises(UsageError, match="this algorithm has networks of its own"):
        SAC(SACConfig(), policy=make("Imitates"))


def test_density_of_single_actions_imitates_no_chunks():
    why = make("DensityOfFirstActions", horizon=4).why_not(TrainablePolicy)
    assert "has no imitation_loss, and evaluate_actions of" in why and "does not accept chunks" in why
    assert not make("ChunksWithValues", horizon=4).why_not(TrainablePolicy)


# ---- densities, values, losses


@pytest.mark.parametrize("name", ["ActsAndValues", "WithTensorDicts"])
def test_samples_have_their_density_and_value(name):
    policy = make(name)
    chunk = policy.act(observations(), SAMPLED)
    state = torch.from_numpy(np.concatenate(list(observations().values()), axis=1))
    model = module_of(policy)
    gaussian = torch.distributions.Normal(model.actor(state), 0.5)
    drawn = torch.from_numpy(chunk.extras["drawn"])
    assert drawn.std() > 0.1
    np.testing.assert_allclose(chunk.extras["log_prob"], gaussian.log_prob(drawn).sum(-1).detach(), rtol=1e-5)
    np.testing.assert_allclose(chunk.extras["value"], model.critic(state)[:, 0].detach(), rtol=1e-5)
    expected = drawn.clamp(-1, 1).numpy() * [2.0, 0.25] + [1.0, 0.25]
    np.testing.assert_allclose(chunk.actions[:, 0], expected, rtol=1e-5)
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    log_prob, entropy, value = policy.evaluate_actions(features, drawn)
    np.testing.assert_allclose(log_prob.detach(), chunk.extras["log_prob"], rtol=1e-5)
    np.testing.assert_allclose(value.detach(), chunk.extras["value"], rtol=1e-5)
    assert entropy.tolist() == pytest.approx([2 * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(0.5))] * 4)


def seen(num_rows=4):
    return {key: torch.from_numpy(value) for key, value in observations(num_rows).items()}


def test_density_of_a_chunk_is_that_of_each_action():
    policy = make("ChunksWithValues", horizon=3)
    chunk = policy.act(observations(), SAMPLED)
    drawn = torch.from_numpy(chunk.extras["drawn"])
    assert drawn.shape == (4, policy.num_drawn) == (4, 6)
    state = torch.from_numpy(np.concatenate(list(observations().values()), axis=1))
    gaussian = torch.distributions.Normal(module_of(policy).actor(state).view(4, 3, 2), 0.5)
    expected = gaussian.log_prob(drawn.view(4, 3, 2)).sum(-1).detach()
    np.testing.assert_allclose(chunk.extras["log_prob"], expected, rtol=1e-5)
    center, half = np.array([1.0, 0.25], np.float32), np.array([2.0, 0.25], np.float32)
    np.testing.assert_allclose(chunk.actions, drawn.view(4, 3, 2).clamp(-1, 1).numpy() * half + center, rtol=1e-5)
    log_prob, entropy, value = policy.evaluate_actions(policy.features(seen()), drawn)
    np.testing.assert_allclose(log_prob.detach(), expected, rtol=1e-5)
    of_action = 2 * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(0.5))
    assert entropy.flatten().tolist() == pytest.approx([of_action] * 12)
    np.testing.assert_allclose(value.detach(), chunk.extras["value"], rtol=1e-5)


def test_density_of_a_whole_chunk_counts_once():
    """However many actions are executed. Its entropy is divided over them."""
    of_actions, whole = (make(name, horizon=3) for name in ("ChunksWithValues", "DensityOfChunks"))
    drawn = torch.from_numpy(of_actions.act(observations(), SAMPLED).extras["drawn"])
    expected, entropy, _ = of_actions.evaluate_actions(of_actions.features(seen()), drawn)
    log_prob, of_chunk, _ = whole.evaluate_actions(whole.features(seen()), drawn)
    np.testing.assert_allclose(whole.act(observations(), SAMPLED).extras["log_prob"], log_prob.detach(), rtol=1e-5)
    assert log_prob[:, 1:].count_nonzero() == 0
    np.testing.assert_allclose(log_prob[:, 0].detach(), expected.sum(1).detach(), rtol=1e-5)
    np.testing.assert_allclose(of_chunk.detach(), entropy.detach(), rtol=1e-5)
    for num_executed in (1, 3):
        executed = torch.full((4,), num_executed)
        joint = executed_density(log_prob, executed, num_axes=2, how="joint")
        torch.testing.assert_close(joint, expected.sum(1))


@pytest.mark.parametrize(("name", "known_rows"), [("ChunksWithValues", 2), ("DensityOfChunks", 1)])
def test_imitation_by_density_of_chunks(name, known_rows):
    """The mean over known actions; the density of a chunk needs all of its actions."""
    policy, actions = make(name, horizon=3), torch.full((2, 3, 2), 0.3)
    features = policy.features(seen(2))
    log_prob, _, _ = make("ChunksWithValues", horizon=3).evaluate_actions(features, actions.flatten(1))
    mask = torch.tensor([[True, True, True], [True, False, False]])
    spoiled = torch.where(mask[..., None], actions, math.nan)
    loss = policy.imitation_loss(features, spoiled, mask)
    known = log_prob[:known_rows][mask[:known_rows]]
    assert loss.item() == pytest.approx(-known.sum().item() / 4, rel=1e-5)


def test_acting_does_not_change_torchs_generator():
    policy = make("ActsAndValues")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = policy.act(observations(), SAMPLED).actions
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(policy.act(observations(), SAMPLED).actions, first)
    assert not np.array_equal(policy.act(observations(), ActContext(seed=6)).actions, first)


def test_value_without_gradient_is_refused():
    policy = make("DetachedValue")
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    with pytest.raises(
        UsageError, match=r"the value of support.user_models:DetachedValue.get_value has no gradient"
    ):
        policy.evaluate_actions(features, torch.zeros(4, 2))


def test_imitation_by_density_is_its_negative_mean():
    policy = make("ActsAndValues")
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    actions = torch.full((4, 2), 0.3)
    log_prob, _, _ = policy.evaluate_actions(features, actions)
    kept = torch.tensor([True, True, False, True])
    spoiled = actions.clone()
    spoiled[2] = math.nan
    loss = policy.imitation_loss(features, spoiled, kept[:, None])
    assert loss.item() == pytest.approx(-log_prob[kept].mean().item())


def test_imitation_learns_the_actions():
    torch.manual_seed(0)
    policy = make("Imitates", horizon=2)
    algorithm = Imitation(ImitationConfig(lr=0.05, weight_decay=0.0), policy=policy)
    batch = {f"observation/{key}": torch.from_numpy(value) for key, value in observations(8).items()}
    batch["action"] = torch.tensor([2.0, 0.4]).expand(8, 2, 2)
    batch["action/mask"] = torch.ones(8, 2, dtype=torch.bool)
    batch["human"] = torch.ones(8, 2, dtype=torch.bool)
    losses = [algorithm.update(batch)["imitation_loss"] for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]
    assert policy.act(observations(1), DETERMINISTIC).actions[0, 1] == pytest.approx([2.0, 0.4], abs=0.1)


def test_training_mode_only_for_imitation():
    policy = make("Imitates")
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    policy.imitation_loss(features, torch.zeros(4, 2))
    assert module_of(policy).training
    policy.act(observations(), DETERMINISTIC)
    assert not module_of(policy).training


def test_bf16_reaches_every_method():
    policy = make("ActsAndValues")
    compute_in_bf16(policy.components.values())
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    exact = make("ActsAndValues").value(features)
    rounded = policy.value(features)
    assert rounded.dtype == torch.float32
    assert 0.0 < (rounded - exact).abs().max() < 0.02


def test_weights_have_the_names_of_the_model():
    policy = make("ActsAndValues")
    weights = policy.weights()["model"]
    assert weights.keys() == module_of(policy).state_dict().keys()
    other = make("ActsAndValues", seed=9)
    other.load(snapshot_of(policy))
    assert np.array_equal(
        other.act(observations(), DETERMINISTIC).actions, policy.act(observations(), DETERMINISTIC).actions
    )
