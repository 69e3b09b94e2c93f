import numpy as np
import pytest
import torch

from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from support.joint_arm import fill
from support.small_algorithms import ROBOT


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def robot():
    return ROBOT


@pytest.fixture
def policy():
    return GaussianMLP(GaussianMLPConfig(hidden=(16, 16)), robot=ROBOT, seed=0)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    arrays = {
        "observation/joint_pos": rng.normal(size=(8, 3)).astype(np.float32),
        "next/joint_pos": rng.normal(size=(8, 3)).astype(np.float32),
        "action": rng.uniform(-1, 1, size=(8, 2)).astype(np.float32),
        "reward": np.array([0, 0, 0, 1, 0, 0, 0, 1], np.float32),
        "discount": np.array([1, 1, 1, 0, 1, 1, 1, 0], np.float32),
        "human": np.array([1, 1, 1, 1, 0, 0, 0, 0], np.bool_),
    }
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


class BatchReplay:
    """A replay that draws rows of one fixed batch."""

    def __init__(self, batch, view_sizes=None):
        self._batch = batch
        self._sizes = view_sizes or {}
        self.asked = []

    def size(self, view):
        return self._sizes.get(view.part, 8)

    def sample(self, into, *, view, rng, window):
        self.asked.append((view.part, len(into["reward"])))
        rows = rng.integers(8, size=len(into["reward"]))
        for name, out in into.items():
            out[:] = self._batch[name].numpy()[rows]


@pytest.fixture
def replay(batch):
    return BatchReplay(batch)


@pytest.fixture
def make_replay(batch):
    return lambda **sizes: BatchReplay(batch, sizes)


@pytest.fixture
def open_replay(tmp_path):
    """`open_replay(*episodes)` returns a replay with these episodes, closed after the test."""
    opened = []

    def open_one(*episodes):
        opened.append(fill(tmp_path / f"replay-{len(opened)}", *episodes))
        return opened[-1]

    yield open_one
    for replay in opened:
        replay.close()
