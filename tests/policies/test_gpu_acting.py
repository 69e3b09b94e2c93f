"""Policies that act on a GPU. Skipped without one."""

import numpy as np
import pytest
import torch

from dovetail.config.schema import PluginSection
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.runs.assembly.policy_components import build_acting_policy
from dovetail.testing.policies import random_inputs
from support.toy_arm import ROBOT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

FLOW = {"hidden": 16, "num_layers": 2, "horizon": 4}
POLICIES = {
    "gaussian_mlp": {"hidden": [16]},
    "flow": {**FLOW, "inputs": ["joint_pos", "front"]},
    "steered": FLOW,
    "valued_flow": FLOW,
    "flow_actor": {"hidden": 16},
    "actor_critic": {"hidden": [16]},
    "flow_actor_critic": {"hidden": 16},
    "shared": {
        "policy": {"type": "flow", **FLOW},
        "embodiments": {
            "toy": {"observation": {"joint_pos": 3, "force": 2}, "num_actions": 2},
            "other": {"observation": {"joint_pos": 5}, "num_actions": 4},
        },
    },
}


@pytest.mark.parametrize("kind", POLICIES)
def test_gpu_acts_as_the_cpu_does(kind):
    def build(device):
        section = PluginSection.parse("policy", {"type": kind, "device": device, **POLICIES[kind]})
        policy = build_acting_policy(section, robot=ROBOT, seed=3)
        policy.warmup()
        return policy

    cpu, gpu = build("cpu"), build("cuda")
    assert all(p.is_cuda for module in gpu.components.values() for p in module.parameters())
    inputs = random_inputs(cpu.spec, np.random.default_rng(0), batch=2)
    for context in (ActContext(deterministic=True), ActContext(deterministic=False, seed=5)):
        expected, found = (policy.act(inputs, context).actions for policy in (cpu, gpu))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    gpu.load(WeightSnapshot(version=7, components=build("cpu").weights(), hashes={}))
    assert gpu.act(inputs, ActContext(deterministic=True)).policy_version == 7
