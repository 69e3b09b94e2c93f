"""CUDA graphs of updates, and the conversion of metrics to floats."""

import pytest
import torch

from dovetail.bench._learn_ours import make_batch, make_rlpd
from dovetail.core.errors import UsageError
from dovetail.learn.cuda_graphs import CudaGraphs, to_floats
from dovetail.learn.data_parallel import DataParallel


def rows_of(batch):
    names = ("observation/state", "action", "reward", "discount", "next/state", "action", "human")
    return tuple(batch[name] for name in names)


def test_to_floats_keeps_order():
    metrics = to_floats({"a": torch.tensor(1.5, requires_grad=True), "b": 2.0, "c": torch.tensor(3.0)})
    assert metrics == {"a": 1.5, "b": 2.0, "c": 3.0}
    assert list(metrics) == ["a", "b", "c"]
    assert all(type(value) is float for value in metrics.values())


def test_cuda_graphs_without_gpu_raise_usage_error():
    with pytest.raises(UsageError, match=r"algorithm\.cuda_graphs needs a CUDA device"):
        make_rlpd(hidden=(8, 8), batch_size=4, critics=3, cuda_graphs=True)
    with pytest.raises(UsageError, match=r"algorithm\.torch_compile needs a CUDA device"):
        make_rlpd(hidden=(8, 8), batch_size=4, critics=3, torch_compile=True)
    with pytest.raises(ValueError, match="generator"):
        CudaGraphs(torch.Generator())


def test_cuda_graphs_with_several_processes_raise_usage_error():
    algorithm = make_rlpd(hidden=(8, 8), batch_size=4, critics=3)
    algorithm._family_config = algorithm._family_config.model_copy(
        update={"cuda_graphs": True}
    )  # as there would be on a GPU
    with pytest.raises(UsageError, match=r"algorithm\.cuda_graphs works in one process"):
        algorithm.set_parallel(DataParallel(rank=0, size=2))


def test_masked_imitation_loss_equals_loss_of_selected_rows():
    algorithm = make_rlpd(hidden=(8, 8), batch_size=8, critics=2)
    features, actions, *_, human = rows_of(make_batch(8))
    assert 0 < human.sum() < 8
    masked = algorithm._policy.imitation_loss(features, actions, human)
    chosen = algorithm._policy.imitation_loss(features[human], actions[human])
    torch.testing.assert_close(masked, chosen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replayed_updates_match_eager_updates():
    device = torch.device("cuda")
    batch = {name: values.to(device) for name, values in make_batch(16).items()}
    found = []
    for graphs in (False, True):
        algorithm = make_rlpd(
            hidden=(16, 16),
            batch_size=16,
            critics=5,
            device=device,
            actor_every=2,
            bc_weight=1,
            cuda_graphs=graphs,
        )
        found.append([dict(algorithm.update(batch)) for _ in range(20)])
    assert "actor_loss" in found[0][9] and "actor_loss" not in found[0][8]
    for plain, replayed in zip(*found, strict=True):
        assert replayed == pytest.approx(plain, rel=1e-3, abs=1e-5)
    assert found[1][-1] != found[1][-3]  # it continues to learn, with new noise
