"""Depth images as inputs of policies."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.learn.algorithms.sac import SAC
from dovetail.learn.algorithms.settings import SACConfig
from dovetail.learn.batches import batch_arrays
from dovetail.policies.checkpoints.axes import match_cameras
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.images.encoders import depth_channels
from dovetail.policies.settings import EncoderConfig
from dovetail.testing import check_policy

ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "force": ArraySpec(shape=(2,)),
        "front": ArraySpec(shape=(24, 32, 3), dtype="uint8"),
        "front_depth": ArraySpec(shape=(24, 32, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5)),
    action_kind="ee_delta",
    control_hz=10.0,
)
ALL = ("force", "front", "front_depth")
CNN = {"type": "cnn", "features": 8}
RESNET = {"type": "resnet", "width": 8, "features": 8}


def test_distances_are_clipped_to_the_range_and_missing_ones_are_marked():
    depth = torch.tensor([0, 100, 200, 600, 1000, 65535], dtype=torch.uint16).view(1, 2, 3, 1)
    channels = depth_channels(depth, (0.2, 1.0))
    assert channels.shape == (1, 2, 3, 2)
    np.testing.assert_allclose(channels[..., 0].flatten(), [0.0, 0.0, 0.0, 127.5, 255.0, 255.0], atol=1e-3)
    assert channels[..., 1].flatten().tolist() == [0.0, 255.0, 255.0, 255.0, 255.0, 255.0]


@pytest.mark.parametrize("encoder", [CNN, RESNET, {**CNN, "shared": True}])
@pytest.mark.parametrize(("policy", "config"), [(GaussianMLP, GaussianMLPConfig), (Flow, FlowConfig)])
def test_policy_with_color_and_depth_keeps_the_contract(policy, config, encoder):
    settings = {"inputs": ALL, "history": {"front_depth": 2}, "encoder": encoder}
    check_policy(lambda: policy(config.from_mapping(settings), robot=ROBOT, seed=3))


def test_action_depends_on_depth_within_the_range_only():
    config = GaussianMLPConfig.from_mapping({"inputs": ALL, "encoder": {**CNN, "depth_range_m": [0.5, 1.0]}})
    policy = GaussianMLP(config, robot=ROBOT, seed=3)
    still = {"force": np.zeros((1, 2), np.float32), "front": np.zeros((1, 24, 32, 3), np.uint8)}

    def act(millimeters):
        depth = np.full((1, 24, 32, 1), millimeters, np.uint16)
        tensors = {key: torch.from_numpy(value) for key, value in {**still, "front_depth": depth}.items()}
        return policy.features(tensors)

    assert torch.equal(act(1000), act(40_000)) and torch.equal(act(10), act(500))
    assert not torch.equal(act(600), act(900))
    assert not torch.equal(act(0), act(10)), "missing is not near"


def test_learner_updates_from_batches_with_depth():
    config = GaussianMLPConfig.from_mapping({"inputs": ALL, "hidden": [8], "encoder": CNN})
    policy = GaussianMLP(config, robot=ROBOT, seed=3)
    algorithm = SAC(SACConfig(batch_size=4, hidden=(8,)), policy=policy, seed=0)
    rng = np.random.default_rng(0)
    batch = batch_arrays(algorithm.sample_request, ROBOT)
    assert batch["observation/front_depth"].dtype == np.uint16
    for array in batch.values():
        if array.dtype in (np.uint8, np.uint16):
            array[:] = rng.integers(0, 256, array.shape)
        elif array.dtype == np.float32:
            array[:] = rng.random(array.shape)
    before = {name: value.clone() for name, value in policy.encoder["camera_front_depth"].state_dict().items()}
    metrics = algorithm.update({name: torch.from_numpy(array) for name, array in batch.items()})
    assert all(np.isfinite(value) for value in metrics.values())
    after = policy.encoder["camera_front_depth"].state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before), "its encoder learns"


def test_one_line_refuses_depth_where_it_cannot_be_used(tmp_path):
    frozen = GaussianMLPConfig.from_mapping(
        {"inputs": ALL, "encoder": {"type": "frozen", "file": str(tmp_path / "x.safetensors")}}
    )
    with pytest.raises(
        SpecMismatch, match=r"depth image 'front_depth' .* reads color only\. Set policy\.encoder\.type to cnn"
    ):
        GaussianMLP(frozen, robot=ROBOT, seed=0)
    with pytest.raises(
        SpecMismatch, match=r"'top' to the depth image 'front_depth', but the model sees color only"
    ) as caught:
        match_cameras(ROBOT, {"top": "front_depth"}, cameras=("top",))
    assert "\n" not in str(caught.value)
    wide = replace(ROBOT, observation={**ROBOT.observation, "two": ArraySpec(shape=(24, 32, 2), dtype="uint16")})
    with pytest.raises(SpecMismatch, match="needs input 'two'"):
        GaussianMLP(GaussianMLPConfig(inputs=("two",)), robot=wide, seed=0)


@pytest.mark.parametrize("limits", [(1.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (0.0, 100.0), (0.0, float("nan"))])
def test_range_that_is_none_is_refused(limits):
    with pytest.raises(ValueError, match="depth_range_m should be 0 <= near < far"):
        EncoderConfig(depth_range_m=limits)
