"""Learning on a GPU. Skipped without one."""

import numpy as np
import pytest
import torch

from dovetail.core.types import ActContext
from dovetail.learn.learner import Learner
from dovetail.learn.precision import compute_in_bf16
from support.small_algorithms import algorithms, batch_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

NAMES = ("rlpd", "sac_flow", "dsrl", "imitation", "hg_dagger", "hi_ors")


def on_gpu(name, robot):
    """Build the algorithm again around the same policy, moved to the GPU."""
    algorithm = algorithms(robot)[name]
    policy = algorithm._policy.to(torch.device("cuda"))
    return type(algorithm)(algorithm._config, policy=policy)


@pytest.mark.parametrize("name", NAMES)
def test_networks_are_on_the_gpu_and_checkpoints_are_numpy(name, robot):
    algorithm = on_gpu(name, robot)
    for _ in range(3):
        metrics = algorithm.update(batch_for(algorithm, "cuda"))
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(p.is_cuda for module in algorithm.networks.values() for p in module.parameters())
    state = {k: np.array(v) for k, v in algorithm.state_dict().items()}  # numpy arrays
    expected = algorithm.update(batch_for(algorithm, "cuda"))
    again = on_gpu(name, robot)
    again.load_state_dict(state)
    assert again.update(batch_for(again, "cuda")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["imitation", "hg_dagger", "hi_ors"])
def test_gpu_checkpoint_resumes_on_cpu(name, robot):
    gpu, cpu = on_gpu(name, robot), algorithms(robot)[name]
    gpu.update(batch_for(gpu, "cuda"))
    cpu.load_state_dict(gpu.state_dict())  # the generator of another device type gets a new seed
    assert all(np.isfinite(value) for value in cpu.update(batch_for(cpu)).values())


@pytest.mark.parametrize("name", NAMES)
def test_act_returns_numpy(name, robot):
    policy = on_gpu(name, robot)._policy
    chunk = policy.act({"joint_pos": np.zeros((2, 3), np.float32)}, ActContext(deterministic=True))
    assert isinstance(chunk.actions, np.ndarray)
    here = algorithms(robot)[name]._policy.act(
        {"joint_pos": np.zeros((2, 3), np.float32)}, ActContext(deterministic=True)
    )
    assert np.allclose(chunk.actions, here.actions, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_updates_are_finite(name, robot):
    algorithm = on_gpu(name, robot)
    compute_in_bf16(algorithm.networks.values())
    metrics = [algorithm.update(batch_for(algorithm, "cuda")) for _ in range(3)]
    assert all(np.isfinite(value) for values in metrics for value in values.values())


def test_learner_prefetches_to_the_gpu(robot, replay):
    algorithm = on_gpu("rlpd", robot)
    learner = Learner(
        algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0), device="cuda", num_ahead=2
    )
    assert np.isfinite(learner.step(env_steps=20)["critic_loss"])
