"""The Triton kernels and the pieces around them compute the same as the plain network.

They need Triton, which comes with torch for CUDA. Without a GPU, Triton's interpreter runs them:
`pip install triton` and this file.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from dovetail.bench.vla.models import make_inputs, make_network
from dovetail.policies.vla.fast.parts import fast_parts
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes, VisionSizes
from dovetail.policies.vla.sampler import Commitment, Sampler

IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")
DTYPE = torch.bfloat16 if IS_GPU else torch.float32
SMALL = {
    "vision": VisionSizes(width=64, num_layers=3, num_heads=4, mlp_width=128, image_size=56),
    "text": GemmaSizes(width=64, num_layers=4, num_heads=4, head_size=32, mlp_width=256),
    "expert": GemmaSizes(width=64, num_layers=4, num_heads=4, head_size=32, mlp_width=128),
    "vocabulary": 256,
    "num_flow_steps": 3,
}
MODELS = {"pi0": Pi0Sizes(**SMALL), "pi05": Pi05Sizes(**SMALL)}


@pytest.fixture(params=MODELS)
def network(request, monkeypatch):
    torch.manual_seed(0)
    if not IS_GPU:  # the pieces run as they are: compiling them needs a C++ compiler and a minute
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    return make_network(MODELS[request.param], device=DEVICE, dtype=DTYPE)


def masked_inputs(network, batch):
    inputs = make_inputs(network.sizes, device=DEVICE, dtype=DTYPE, batch=batch)
    inputs.token_mask[0, 30:] = False
    inputs.camera_mask[0, 1] = False
    return inputs


def relative(ours, expected):
    return float((ours.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("batch", [1, 2, 3])  # 3: too many tokens for the kernels
def test_chunks_equal_those_of_the_plain_network(network, batch):
    inputs = masked_inputs(network, batch)
    expected = Sampler(network, num_steps=3)(inputs)
    ours = Sampler(network, num_steps=3, parts=fast_parts(network), graph=IS_GPU)(inputs)
    assert relative(ours, expected) < (2e-2 if IS_GPU else 1e-5)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_guided_chunks_equal_those_of_the_plain_network(network, batch):
    inputs = masked_inputs(network, batch)
    target = torch.randn_like(inputs.noise)
    weights = torch.zeros_like(target)
    weights[:, :10, :7] = 1.0
    commitment = Commitment(target, weights)
    expected = Sampler(network, num_steps=3)(inputs, commitment)
    ours = Sampler(network, num_steps=3, parts=fast_parts(network), graph=IS_GPU)(inputs, commitment)
    assert relative(ours, expected) < (2e-2 if IS_GPU else 1e-5)
