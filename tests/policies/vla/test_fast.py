"""The Triton kernels and the pieces around them compute the same as the plain network.

They need Triton, which comes with torch for CUDA. Without a GPU, Triton's interpreter runs them, with fewer
layers and steps. On a GPU both compute in bfloat16, so each is compared with float32: these small random networks
amplify roundings, and two results that are equally near to the truth can differ by more than either errs.
"""

import copy
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from dovetail.bench.vla.models import make_inputs, make_network
from dovetail.policies.vla.fast.parts import fast_parts
from dovetail.policies.vla.lora import Lora, Place
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes, VisionSizes
from dovetail.policies.vla.sampler import Commitment, Sampler

pytestmark = pytest.mark.extended  # the interpreter is slow
IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")
DTYPE = torch.bfloat16 if IS_GPU else torch.float32
NUM_LAYERS, NUM_STEPS = 4, 3


def small(num_layers):
    return {
        "vision": VisionSizes(width=64, num_layers=num_layers, num_heads=4, mlp_width=128, image_size=56),
        "text": GemmaSizes(width=64, num_layers=num_layers, num_heads=4, head_size=32, mlp_width=256),
        "expert": GemmaSizes(width=64, num_layers=num_layers, num_heads=4, head_size=32, mlp_width=128),
        "vocabulary": 256,
        "horizon": 20,
    }


MODELS = {"pi0": Pi0Sizes(**small(NUM_LAYERS)), "pi05": Pi05Sizes(**small(NUM_LAYERS))}


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


def in_float32(tensors):
    return tensors._replace(
        **{name: value.float() for name, value in tensors._asdict().items() if value.is_floating_point()}
    )


def assert_as_near_as_the_plain_network(ours, network, inputs, *commitment, num_steps=NUM_STEPS):
    """As near to the plain network in float32 as the plain network itself is, which is exact on a CPU."""
    sampler = Sampler(copy.deepcopy(network).float(), num_steps=num_steps)
    exact = sampler(in_float32(inputs), *map(in_float32, commitment))
    plain = relative(Sampler(network, num_steps=num_steps)(inputs, *commitment), exact)
    assert plain < (0.1 if IS_GPU else 1e-9)
    assert relative(ours, exact) < 1.5 * plain + (2e-3 if IS_GPU else 1e-5)


@pytest.mark.parametrize("batch", [1, 2, 7])  # 7: too many tokens for the kernels
def test_chunks_equal_those_of_the_plain_network(network, batch):
    inputs = masked_inputs(network, batch)
    ours = Sampler(network, num_steps=NUM_STEPS, parts=fast_parts(network), graph=IS_GPU)(inputs)
    assert_as_near_as_the_plain_network(ours, network, inputs)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_guided_chunks_equal_those_of_the_plain_network(network, batch):
    inputs = masked_inputs(network, batch)
    target = torch.randn_like(inputs.noise)
    weights = torch.zeros_like(target)
    weights[:, :10, :7] = 1.0
    commitment = Commitment(target, weights)
    ours = Sampler(network, num_steps=NUM_STEPS, parts=fast_parts(network), graph=IS_GPU)(inputs, commitment)
    assert_as_near_as_the_plain_network(ours, network, inputs, commitment)


def test_adapted_layers_are_compiled_once_and_equal_the_merged_network(monkeypatch):
    """With a class for each layer, torch refused the ninth (recompile limit, fullgraph)."""
    torch._dynamo.reset()
    num_layers = torch._dynamo.config.recompile_limit + 2
    torch.manual_seed(0)
    network = make_network(Pi0Sizes(**small(num_layers)), device=DEVICE, dtype=DTYPE)
    places = {name: Place(name, 0, len(value)) for name, value in network.named_parameters()}
    lora = Lora.add(network, places, pattern=r"(text|expert)_layers.*", rank=2, alpha=4.0, seed=0)
    with torch.no_grad():
        for update in lora.updates.values():
            update.up.normal_(0.0, 0.3)
    if not IS_GPU:  # traced and guarded as on a GPU, but without code generation
        compile_ = torch.compile
        monkeypatch.setattr(torch, "compile", lambda function, **more: compile_(function, backend="eager", **more))
    inputs = make_inputs(network.sizes, device=DEVICE, dtype=DTYPE)
    ours = Sampler(network, num_steps=1, parts=fast_parts(network), graph=IS_GPU)(inputs)
    lora.merge()
    assert_as_near_as_the_plain_network(ours, network, inputs, num_steps=1)
