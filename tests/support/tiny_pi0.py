"""Small pi0 models with random weights, in the published layouts. The reference is transformers' own implementation."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.bench.vla._stock import stock_config
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, VisionSizes

SIZES = Pi0Sizes(
    vision=VisionSizes(width=32, num_layers=2, num_heads=2, mlp_width=48, image_size=28, patch_size=14),
    text=GemmaSizes(width=32, num_layers=3, num_heads=4, num_kv_heads=1, head_size=16, mlp_width=64),
    expert=GemmaSizes(width=24, num_layers=3, num_heads=4, num_kv_heads=1, head_size=16, mlp_width=40),
    vocabulary=64,
    num_prompt_tokens=6,
    horizon=5,
    has_float64_times=False,  # as transformers
)


def reference_model(sizes: Pi0Sizes = SIZES, *, seed: int = 0) -> Any:
    """transformers' model with random weights, norms and biases too: their initial values would hide mistakes."""
    from transformers import PI0ForConditionalGeneration

    model = PI0ForConditionalGeneration(stock_config(sizes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def to_bfloat16(model: Any) -> Any:
    """The model in bfloat16 with its frequencies in float32, as `from_pretrained(dtype=bfloat16)` makes it. `to` alone would
    round the frequencies of time and positions too: the reference is then off by 12 %."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to(torch.bfloat16)
    for name, buffer in buffers.items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer)
    return model
