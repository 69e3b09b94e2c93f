"""LoRA in a network that torch compiles: one compilation for all layers, and the chunks of the merged network."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from dovetail.bench.vla.models import TINY, TINY_PI05, TINY_SMOLVLA, first_actions, make_inputs, make_network
from dovetail.policies.vla.lora import Lora, Place, Update, summed_once
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, VisionSizes
from dovetail.policies.vla.networks.transformers import rotation, self_attention_layer
from dovetail.policies.vla.sampler import Parts, Sampler

CPU = torch.device("cpu")
NUM_LAYERS = torch._dynamo.config.recompile_limit + 2
DEEP = Pi0Sizes(
    vision=VisionSizes(width=16, num_layers=NUM_LAYERS, num_heads=2, mlp_width=16, image_size=28),
    text=GemmaSizes(width=16, num_layers=NUM_LAYERS, num_heads=2, head_size=8, mlp_width=16),
    expert=GemmaSizes(width=16, num_layers=NUM_LAYERS, num_heads=2, head_size=8, mlp_width=16),
    vocabulary=16,
)
FAMILIES = (TINY, TINY_PI05, TINY_SMOLVLA)
LAYERS = r"(vision\.layers|text_layers|expert_layers).*"


@pytest.fixture(autouse=True)
def _nothing_compiled_yet():
    torch._dynamo.reset()


def adapted(sizes):
    """A network, and its adapters with random A and B."""
    torch.manual_seed(0)
    network = make_network(sizes, device=CPU, dtype=torch.float32)
    places = {name: Place(name, 0, len(value)) for name, value in network.named_parameters()}
    lora = Lora.add(network, places, pattern=LAYERS, rank=2, alpha=4.0, seed=0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.5)  # a norm of smolvla with a scale near 0 makes all layers the same
        for update in lora.updates.values():
            update.up.normal_(0.0, 0.3)
    return network, lora


class Compiled:
    """`torch.compile` as the fast path calls it, without code generation. Counts what it compiles."""

    def __init__(self):
        self.num = 0

    def __call__(self, function):
        return torch.compile(function, dynamic=False, fullgraph=True, backend=self._count)

    def _count(self, graph, inputs):
        self.num += 1
        return graph.forward


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_more_adapted_layers_than_torch_recompiles_are_one_compilation(kind):
    network, lora = adapted(DEEP)
    where, bias = rotation(torch.arange(5)[None], head_size=8), torch.zeros(1, 1, 1, 5)
    layers = network.text_layers if kind == "text" else network.vision.layers
    call = (lambda layer, x: self_attention_layer(layer, x, where, bias)[0]) if kind == "text" else (
        lambda layer, x: layer(x)
    )  # fmt: skip
    compiled = Compiled()
    piece = compiled(call)
    x = expected = torch.randn(1, 5, 16)
    with torch.no_grad():
        for layer in layers:
            x = piece(layer, x)
        lora.merge()
        for layer in layers:
            expected = call(layer, expected)
    assert compiled.num == 1
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "is_guided", "is_compiled"),
    [
        *((sizes, is_guided, False) for sizes in FAMILIES for is_guided in (False, True)),
        (TINY, False, True),
        (TINY_SMOLVLA, True, True),
    ],
)
def test_chunks_equal_those_of_the_merged_network(sizes, is_guided, is_compiled):
    network, lora = adapted(sizes)
    inputs = make_inputs(sizes, device=CPU, dtype=torch.float32)
    commitment = first_actions(inputs) if is_guided else None
    compiled = Compiled()
    parts = Parts(compiled(network.prefix), compiled(network.velocity)) if is_compiled else None
    sampler = Sampler(network, num_steps=2, parts=parts)
    without = Sampler(make_network_without(network, lora), num_steps=2)(inputs, commitment)
    for scale in (1.0, -2.0):  # new values of A and B act in the next chunk
        with torch.no_grad():
            for update in lora.updates.values():
                update.up.mul_(scale)
        merged = make_network_without(network, lora, merged=True)
        expected = Sampler(merged, num_steps=2)(inputs, commitment)
        found = sampler(inputs, commitment)
        assert (found - without).norm() > 0.1 * without.norm()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def make_network_without(network, lora, *, merged=False):
    """A copy without adapters, or with their sums as its weights."""
    copied, lora = deepcopy((network, lora))
    if not merged:
        for update in lora.updates.values():
            update.up.data.zero_()
    lora.merge()
    return copied


def test_merged_network_has_the_classes_and_parameters_of_before():
    plain = make_network(TINY, device=CPU, dtype=torch.float32)
    network, lora = adapted(TINY)
    lora.merge()
    assert dict(network.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    assert [type(module) for module in network.modules()] == [type(module) for module in plain.modules()]


def test_sums_of_the_expert_are_computed_once_per_chunk(monkeypatch):
    network, _ = adapted(TINY)
    num_calls = 0
    forward = Update.forward

    def counted(update):
        nonlocal num_calls
        num_calls += 1
        return forward(update)

    monkeypatch.setattr(Update, "forward", counted)
    inputs = make_inputs(TINY, device=CPU, dtype=torch.float32)
    counts = []
    for num_steps in (1, 5):
        num_calls = 0
        Sampler(network, num_steps=num_steps)(inputs)
        counts.append(num_calls)
    assert counts[0] == counts[1]


def test_sums_follow_the_updates_after_a_chunk():
    network, lora = adapted(TINY)
    layer = network.expert_layers[0].down
    with torch.no_grad():
        with summed_once([network]):
            before = layer.weight
            assert layer.weight is before
        lora.updates["expert_layers.0.down.weight"].up.mul_(2.0)
        assert not torch.equal(layer.weight, before)
