"""New weights on a GPU: a captured CUDA graph uses them after the exchange, and not before. Skipped without a GPU."""

import pytest
import torch
from torch import nn

from dovetail.policies.arrays import module_digest, stage_module, to_numpy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_graph_uses_staged_weights_after_the_exchange(dtype):
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    acting, trained = (nn.Linear(64, 64).to(device, dtype) for _ in range(2))
    inputs = torch.randn(8, 64, device=device, dtype=dtype)
    with torch.no_grad():
        acting(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = acting(inputs)
        before, after = acting(inputs), trained(inputs)
        addresses = [p.data_ptr() for p in acting.parameters()]
        use = stage_module(acting, {key: to_numpy(value) for key, value in trained.state_dict().items()}, device)
        graph.replay()
        torch.testing.assert_close(outputs, before)
        use()
        del use
        graph.replay()
        torch.testing.assert_close(outputs, after)
    assert [p.data_ptr() for p in acting.parameters()] == addresses
    assert module_digest(acting) == module_digest(trained)
