"""ACT and Diffusion Policy on a GPU. Skipped without one."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext
from dovetail.testing.policies import random_inputs
from support.toy_arm import ROBOT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

CONFIGS = {
    "act": {"horizon": 4, "hidden": 16, "num_heads": 2, "feedforward": 16},
    "diffusion": {"horizon": 4, "channels": (8, 16), "kernel_size": 3, "num_train_steps": 10, "scheduler": "ddim"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_chunk_equals_that_of_the_cpu_and_training_works(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plugin = resolve("policy", name)
    config = plugin.Config(inputs=("force", "front"), width=16, **CONFIGS[name])
    cpu, gpu = plugin(config, robot=ROBOT), plugin(config, robot=ROBOT).to(torch.device("cuda"))
    seen = random_inputs(cpu.spec, np.random.default_rng(0), batch=2)
    contexts = [ActContext(deterministic=True)]
    if cpu.spec.guidable:
        prefix = np.zeros((2, 4, 2), np.float32)
        contexts.append(ActContext(deterministic=True, prefix=prefix, delay=1, horizon=1))
    for context in contexts:
        np.testing.assert_allclose(gpu.act(seen, context).actions, cpu.act(seen, context).actions, atol=1e-3)
    tensors = {key: torch.tensor(value, device="cuda") for key, value in seen.items()}
    actions = gpu.normalize_actions(torch.rand(2, 4, 2, device="cuda"))
    mask = torch.ones(2, 4, dtype=torch.bool, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(1)
    loss = gpu.imitation_loss(gpu.features(tensors), actions, mask, generator=generator)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.is_cuda for module in gpu.components.values() for p in module.parameters())
