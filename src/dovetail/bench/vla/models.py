"""Networks with random weights, and inputs for them: full size, or tiny ones for a CPU."""

from __future__ import annotations

from typing import overload

import torch

from dovetail.bench.vla._folder import published_sources
from dovetail.policies.vla.lora import Lora, Place
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.pi0 import Pi0Network
from dovetail.policies.vla.networks.pi05 import Pi05Network
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes, SmolVLASizes, VisionSizes
from dovetail.policies.vla.networks.smolvla import SmolVLANetwork
from dovetail.policies.vla.sampler import Commitment, Inputs
from dovetail.policies.vla.settings import LoraConfig

__all__ = ["TINY", "TINY_PI05", "TINY_SMOLVLA", "add_lora", "first_actions", "make_inputs", "make_network"]

TINY = Pi0Sizes(
    vision=VisionSizes(width=64, num_layers=2, num_heads=4, mlp_width=128, image_size=56),
    text=GemmaSizes(width=64, num_layers=4, num_heads=4, head_size=32, mlp_width=256),
    expert=GemmaSizes(width=32, num_layers=4, num_heads=4, head_size=32, mlp_width=128),
    vocabulary=256,
    has_float64_times=False,  # as transformers
)
TINY_PI05 = Pi05Sizes(vision=TINY.vision, text=TINY.text, expert=TINY.expert, vocabulary=TINY.vocabulary)
TINY_SMOLVLA = SmolVLASizes(
    vision=VisionSizes(width=64, num_layers=2, num_heads=4, mlp_width=128, image_size=64, patch_size=8, join=4),
    text=GemmaSizes(width=64, num_layers=4, num_heads=4, num_kv_heads=2, head_size=32, mlp_width=256),
    expert=GemmaSizes(width=48, num_layers=4, num_heads=4, num_kv_heads=2, head_size=32, mlp_width=128),
    vocabulary=256,
)


@overload
def make_network(sizes: Pi0Sizes, *, device: torch.device, dtype: torch.dtype) -> PaliGemmaNetwork: ...
@overload
def make_network(sizes: SmolVLASizes, *, device: torch.device, dtype: torch.dtype) -> SmolVLANetwork: ...
def make_network(
    sizes: Pi0Sizes | SmolVLASizes, *, device: torch.device, dtype: torch.dtype
) -> PaliGemmaNetwork | SmolVLANetwork:
    """Random weights of the model that has such sizes, made on the device."""
    network: PaliGemmaNetwork | SmolVLANetwork
    with torch.device("meta"):
        if isinstance(sizes, SmolVLASizes):
            network = SmolVLANetwork(sizes)
        else:
            network = Pi05Network(sizes) if isinstance(sizes, Pi05Sizes) else Pi0Network(sizes)
    network = network.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    for parameter in network.parameters():
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.02)
    return network


def add_lora(network: PaliGemmaNetwork, *, rank: int) -> Lora:
    """Adapters of the default `policy.lora.targets`, with random values so that they change the chunks."""
    places = {}
    for parameter, sources in published_sources(network).items():
        first = 0
        for name, num in sources:
            places[name] = Place(parameter, first, num)
            first += num
    config = LoraConfig(rank=rank)
    lora = Lora.add(network, places, pattern=config.targets, rank=rank, alpha=config.alpha, seed=0)
    for update in lora.updates.values():
        torch.nn.init.normal_(update.up, std=0.01)
    return lora


def make_inputs(
    sizes: Pi0Sizes | SmolVLASizes, *, device: torch.device, dtype: torch.dtype, batch: int = 1
) -> Inputs:
    size, num_tokens = sizes.image_size, sizes.num_prompt_tokens
    return Inputs(
        images=torch.rand(batch, sizes.num_cameras, 3, size, size, device=device).mul(2.0).sub(1.0).to(dtype),
        camera_mask=torch.ones(batch, sizes.num_cameras, dtype=torch.bool, device=device),
        tokens=torch.randint(1, sizes.vocabulary, (batch, num_tokens), device=device),
        token_mask=torch.ones(batch, num_tokens, dtype=torch.bool, device=device),
        state=torch.randn(batch, sizes.state_size, device=device).to(dtype),
        noise=torch.randn(batch, sizes.horizon, sizes.action_size, device=device),
    )


def first_actions(inputs: Inputs) -> Commitment:
    """Ten actions of seven axes that a chunk must continue."""
    target = torch.randn_like(inputs.noise)
    weights = torch.zeros_like(target)
    weights[:, :10, :7] = 1.0
    return Commitment(target, weights)
