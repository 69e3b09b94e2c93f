"""A frozen image encoder encodes each image of a rollout once: the learner gets features."""

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.policies.images.backbones import MobileNetV2, save_backbone
from dovetail.policies.images.encoders import FrozenEncoder
from dovetail.runtime.onpolicy.collector import build_collector, collector_settings
from support.onpolicy_runs import PPO_RUN, build_training


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("net") / "net.safetensors"
    save_backbone(MobileNetV2(), path, arch="mobilenet_v2")
    return path


def test_frozen_encoder_is_not_called_in_updates(file, tmp_path, monkeypatch):
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    policy = (
        "policy={type: valued_flow, inputs: [goal, front], history: {front: 2}, horizon: 2, hidden: 8, num_layers: 1, "
        f"value_hidden: [8], encoder: {{type: frozen, file: {file}, features: 4}}}}"
    )
    settings = "algorithm={type: ppo, num_envs: 2, rollout_steps: 3, batch_size: 4, num_epochs: 2}"
    robot = "robot={type: 'dovetail.testing.fakes:FakeArm', image_size: [32, 32]}"
    config = load([tmp_path / "ppo.yaml"], [policy, settings, robot, "task.max_steps=4", "task.tolerance=0.0001"])
    encoded = []
    forward = FrozenEncoder.__call__

    def counted(self, images):
        encoded.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(FrozenEncoder, "__call__", counted)
    training = build_training(config)
    collector = build_collector(collector_settings(config, training._rollouts, num_rollouts=0), {})
    collector.load(training.policy_weights(), version=0)
    rollout = collector.collect()
    collector.close()
    features = training._algorithm._policy.feature_specs["front"]
    assert rollout["observation/front"].shape == (2, 4, 2, *features.shape)  # two worlds, 3 + 1 steps, two ticks
    assert rollout["observation/front"].dtype == np.dtype(features.dtype)
    assert rollout["final/front"].shape == (len(rollout["final_at"]), 2, *features.shape)
    in_rollout = 2 * 2 * (4 + len(rollout["final_at"]) // 2)  # each observation with its history
    assert sum(encoded) == in_rollout
    encoded.clear()
    assert training.step().metrics["epochs"] == 2
    assert sum(encoded) == in_rollout  # a rollout like the first, and nothing in its update
    training.close()
