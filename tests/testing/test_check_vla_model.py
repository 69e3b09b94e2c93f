"""`check_vla_model` accepts right models and names what is wrong with others."""

import pytest
import torch

from dovetail.testing import check_vla_model
from support import user_models
from support.user_models import (
    Acts,
    ActsAndValues,
    ChunksWithValues,
    DensityOfChunks,
    DensityOfFirstActions,
    Imitates,
)

INPUTS = {"inputs": ["joint_pos", "gripper"], "language": False}


@pytest.mark.parametrize(
    ("model", "settings", "abilities"),
    [
        (Acts, {}, {"act"}),
        (Imitates, {"horizon": 3, "history": {"joint_pos": 2}}, {"act", "imitate"}),
        (ActsAndValues, {}, {"act", "imitate", "ppo"}),
        (ChunksWithValues, {"horizon": 3, "history": {"joint_pos": 2}}, {"act", "imitate", "ppo"}),
        (DensityOfChunks, {"horizon": 3}, {"act", "imitate", "ppo"}),
        (DensityOfFirstActions, {"horizon": 3}, {"act"}),
        ("support.user_models:WithTensorDicts", {"language": True}, {"act", "imitate", "ppo"}),
    ],
)
def test_right_models_pass(model, settings, abilities):
    assert check_vla_model(model, **{**INPUTS, **settings}) == abilities


class NeverSamples(ActsAndValues):
    def forward(self, observations, deterministic=False):
        return super().forward(observations, deterministic=True)


class AlwaysSamples(ActsAndValues):
    def forward(self, observations):
        return super().forward(observations)


class OtherStd(ActsAndValues):
    def evaluate_actions(self, observations, actions):
        log_prob, entropy = super().evaluate_actions(observations, actions / 2)
        return log_prob, entropy


class OtherChunk(ChunksWithValues):
    def evaluate_actions(self, observations, actions):
        return super().evaluate_actions(observations, actions.flip(1) / 2)


class HiddenWeights(Acts):
    def __init__(self, action_dim, proprio_dim):
        super().__init__(action_dim, proprio_dim)
        self.offset = torch.rand(action_dim)  # not a buffer

    def forward(self, observations):
        return super().forward(observations) + self.offset


class MixesRows(Acts):
    def forward(self, observations):
        return super().forward(observations) + super().forward(observations).mean(0)


class IgnoresMask(Imitates):
    def imitation_loss(self, observations, actions, mask):
        return (self.forward(observations) - actions).square().mean()


class NoGradient(Imitates):
    @torch.no_grad()
    def imitation_loss(self, observations, actions, mask):
        return super().imitation_loss(observations, actions, mask)


class TwoValues(ActsAndValues):
    def evaluate_actions(self, observations, actions):
        return *super().evaluate_actions(observations, actions), self.get_value(observations) + 1.0


WRONG = [
    (NeverSamples, {}, "forward returns the same action for every draw"),
    (AlwaysSamples, {}, "gets another action than alone"),
    (OtherStd, {}, "evaluate_actions is for another distribution"),
    (OtherChunk, {"horizon": 3}, "evaluate_actions is for another distribution"),
    (HiddenWeights, {}, r"must be in state_dict\(\)"),
    (MixesRows, {}, "rows must be independent"),
    (IgnoresMask, {"horizon": 3}, "an action that the mask excludes changes imitation_loss"),
    (NoGradient, {}, "the imitation loss has no gradient"),
    (TwoValues, {}, "evaluate_actions has another value than get_value"),
]


@pytest.mark.parametrize(("model", "settings", "message"), WRONG, ids=[model.__name__ for model, _, _ in WRONG])
def test_wrong_models_are_named(monkeypatch, model, settings, message):
    monkeypatch.setattr(user_models, model.__name__, model, raising=False)
    with pytest.raises(AssertionError, match=message) as caught:
        check_vla_model(f"support.user_models:{model.__name__}", **{**INPUTS, **settings})
    assert "\n" not in str(caught.value)
