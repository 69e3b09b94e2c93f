"""Components of a class of the user, activations of MLPs, and weights of named losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file
from torch import nn

from dovetail.config.schema import PluginSection
from dovetail.config.trust import check_stored
from dovetail.core.errors import PluginError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.components import ComponentConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.networks import mlp
from dovetail.policies.vla.settings import UserModelConfig
from dovetail.policies.vla.user_model_policy import UserModelPolicy
from dovetail.runs.assembly.policy_components import build_policy
from dovetail.testing import check_algorithm, check_policy
from support.own_networks import LinearDenoiser

OWN = "support.own_networks:LinearDenoiser"


@pytest.fixture
def robot():
    return RobotSpec(
        name="arm",
        embodiment="toy",
        observation={"joint_pos": ArraySpec(shape=(3,))},
        action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
        action_kind="ee_delta",
        control_hz=10.0,
    )


def flow(robot, **component):
    components = {"actor": {"model_class": OWN, **component}}
    return Flow(FlowConfig(horizon=3, num_flow_steps=2, components=components), robot=robot)


def test_own_class_is_built_with_its_config_and_the_robots_sizes(robot):
    policy = flow(robot, model_config={"gain": 0.5})
    actor = policy.components["actor"]
    assert type(actor) is LinearDenoiser
    assert (actor.gain, actor.out.in_features, actor.out.out_features) == (0.5, 3, 3 * 2)
    check_policy(lambda: flow(robot))


def test_own_class_learns_and_resumes(robot):
    check_algorithm(lambda: Imitation(ImitationConfig(batch_size=4), policy=flow(robot), seed=0), robot=robot)


def test_own_class_starts_from_a_checkpoint(robot, tmp_path):
    state = {"out.weight": np.zeros((6, 3), np.float32), "out.bias": np.full(6, 0.25, np.float32)}
    save_file(state, tmp_path / "actor.safetensors")
    config = flow(robot)._config.model_copy(
        update={
            "components": {
                "actor": ComponentConfig(model_class=OWN, checkpoint=str(tmp_path / "actor.safetensors"))
            }
        }
    )
    section = PluginSection(kind="policy", type="flow", config=config)
    policy = build_policy(section, robot=robot, seed=0)
    # all of the features' weights are 0: each action is 0.25 of its range, whatever is observed
    chunk = policy.act({"joint_pos": np.ones((2, 3), np.float32)}, ActContext(seed=0))
    np.testing.assert_allclose(policy.normalize_actions(torch.from_numpy(chunk.actions)), 0.25, atol=1e-6)


def test_own_actor_and_critic_of_ppo(robot):
    components = {
        "actor": {"model_class": "support.own_networks:LinearMean"},
        "critic": {"model_class": "support.own_networks:LinearMean", "model_config": {"num_actions": 1}},
    }
    policy = ActorCritic(ActorCriticConfig(components=components), robot=robot)
    observations = {"joint_pos": torch.ones(4, 3)}
    log_prob, _, value = policy.evaluate_actions(policy.features(observations), torch.zeros(4, 2))
    assert log_prob.shape == value.shape == (4,)
    assert policy.components["actor"].log_std.shape == (2,)


@pytest.mark.parametrize(
    ("component", "error", "message"),
    [
        ({"model_class": "support.own_networks:Missing"}, PluginError, "has no 'Missing'"),
        ({"model_class": "collections:Counter"}, PluginError, r"should be a subclass of torch\.nn\.Module"),
        ({"model_config": {"gains": 2}}, PluginError, r"policy\.components\.actor\.model_config does not fit"),
        ({"model_config": {"horizon": 9}}, UsageError, r"model_config\.horizon is 9, but the robot needs 3"),
        ({"activation": "relu"}, UsageError, "does not fit policy 'flow': it is not for this policy"),
    ],
)
def test_wrong_class_or_arguments_are_one_line(robot, component, error, message):
    with pytest.raises(error, match=message):
        flow(robot, **component)


def test_component_that_cannot_be_replaced_is_refused(robot):
    with pytest.raises(UsageError, match=r"encoder\.model_class does not fit policy 'flow': it is only for actor"):
        Flow(FlowConfig(components={"encoder": {"model_class": OWN}}), robot=robot)
    with pytest.raises(ValidationError, match="model_config is for a model_class"):
        ComponentConfig(model_config={"gain": 1})


def test_stored_config_with_a_class_needs_trust(tmp_path):
    config = {"policy": {"type": "flow", "components": {"actor": {"model_class": OWN}}}}
    with pytest.raises(
        PluginError, match=r"names the code of a model .*\(policy\.components\.actor\.model_class\)"
    ):
        check_stored(config, tmp_path)


# ---- activations


def test_activation_follows_each_hidden_layer(robot):
    """One hidden unit of weight 1 and LayerNorm off: relu(-2) = 0 and relu(3) = 3."""
    network = mlp((1, 2, 1), activation="relu")
    assert [type(layer) for layer in network] == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    with torch.no_grad():
        network[0].weight[:] = torch.tensor([[1.0], [-1.0]])
        network[0].bias[:] = 0.0
        network[3].weight[:] = torch.tensor([[1.0, 10.0]])
        network[3].bias[:] = 0.0
    # hidden (x, -x) becomes (1, -1) for x > 0 after the norm
    assert network(torch.tensor([[3.0], [-2.0]])).flatten().tolist() == pytest.approx([1.0, 10.0], abs=1e-3)


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "elu"])
def test_policies_take_an_activation_per_component(robot, activation):
    chosen = {"actor": {"activation": activation}}
    ppo = ActorCritic(ActorCriticConfig(components={**chosen, "critic": {"activation": "relu"}}), robot=robot)
    name = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "elu": "ELU"}[activation]
    assert type(ppo.components["actor"].mean[2]).__name__ == name
    assert type(ppo.components["critic"][2]).__name__ == "ReLU"
    gaussian = GaussianMLP(GaussianMLPConfig(components=chosen), robot=robot)
    assert type(gaussian.components["actor"][2]).__name__ == name
    check_policy(lambda: GaussianMLP(GaussianMLPConfig(components=chosen), robot=robot))


# ---- losses by name


def two_losses(robot, *, is_named=True, **weights):
    config = UserModelConfig(
        model_class="support.own_networks:TwoLosses", model_config={"is_named": is_named}, loss_weights=weights
    )
    policy = UserModelPolicy(config, robot=robot)
    features = policy.features({"joint_pos": torch.zeros(4, 3), "prompt": torch.zeros(4, 256, dtype=torch.uint8)})
    return policy.imitation_loss(features, torch.zeros(4, 1, 2)).item()


def test_named_losses_are_summed_with_their_weights(robot):
    assert two_losses(robot) == 8.0
    assert two_losses(robot, contact=0.1) == pytest.approx(3.5)
    assert two_losses(robot, actions=2.0, contact=0.0) == 6.0
    assert two_losses(robot, is_named=False) == 3.0


def test_weight_of_an_unknown_loss_is_refused(robot):
    with pytest.raises(UsageError, match=r"names 'force', but .*imitation_loss returns actions, contact"):
        two_losses(robot, force=1.0)
    with pytest.raises(UsageError, match=r"needs losses by name, but .*imitation_loss returns one"):
        two_losses(robot, is_named=False, actions=1.0)
