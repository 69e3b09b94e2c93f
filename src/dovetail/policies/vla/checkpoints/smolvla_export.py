"""SmolVLA as LeRobot writes it."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.policies.vla.checkpoints.smolvla_keys import HEAD, TEXT_NORM
from dovetail.policies.vla.family import Export
from dovetail.policies.vla.networks.sizes import SmolVLASizes

__all__ = ["smolvla_export"]

_STEPS = (
    "rename_observations_processor",
    "to_batch_processor",
    "smolvla_new_line_processor",
    "tokenizer_processor",
    "device_processor",
    "normalizer_processor",
)
_VLMS = {576: "256M", 960: "500M", 2048: "2.2B"}  # by width


def smolvla_export(checkpoint: Any) -> Export:
    sizes: SmolVLASizes = checkpoint.sizes
    dtype = checkpoint.tensor(checkpoint.layout.sources["embedding.weight"][0]).dtype
    unused = {HEAD: (sizes.vocabulary, sizes.text.width), TEXT_NORM: (sizes.text.width,)}
    vlm = f"HuggingFaceTB/SmolVLM2-{_VLMS.get(sizes.text.width, '500M')}"
    return Export(
        sources=checkpoint.layout.sources,
        more={
            key: checkpoint.tensor(key) if key in checkpoint.files.shapes else torch.zeros(shape, dtype=dtype)
            for key, shape in unused.items()
        },
        copies={},
        steps=_STEPS,
        config={
            "vlm_model_name": f"{vlm}-Instruct" if vlm.endswith("2.2B") else f"{vlm}-Video-Instruct",
            # then LeRobot makes the text model in bfloat16, as in training
            "load_vlm_weights": True,
            "num_vlm_layers": sizes.text.num_layers,
            "num_expert_layers": -1,
            "expert_width_multiplier": sizes.expert.width / sizes.text.width,
            "attention_mode": "cross_attn",
            "self_attn_every_n_layers": sizes.self_attention_every,
            "resize_imgs_with_padding": [sizes.image_size, sizes.image_size],
            "empty_cameras": checkpoint.max_absent_cameras or 0,
            "pad_language_to": "max_length",
            "num_steps": sizes.num_flow_steps,
            "min_period": sizes.min_period,
            "max_period": sizes.max_period,
        },
    )
