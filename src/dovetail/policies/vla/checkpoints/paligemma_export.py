"""pi0 and pi0.5 as LeRobot writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dovetail.policies.vla.checkpoints.keys import parameter_sources
from dovetail.policies.vla.checkpoints.paligemma_keys import shared_keys
from dovetail.policies.vla.family import Export
from dovetail.policies.vla.networks.sizes import Pi0Sizes

__all__ = ["pi0_export", "pi05_export"]

_VLM = "model.paligemma_with_expert.paligemma."
_LANGUAGE = f"{_VLM}model.language_model."
_EXPERT_HEAD = "model.paligemma_with_expert.gemma_expert.lm_head.weight"
_PI0_STEPS = (
    "rename_observations_processor",
    "to_batch_processor",
    "pi0_new_line_processor",
    "tokenizer_processor",
    "device_processor",
    "relative_actions_processor",
    "normalizer_processor",
)
_PI05_STEPS = (
    "rename_observations_processor",
    "to_batch_processor",
    "relative_actions_processor",
    "normalizer_processor",
    "pi05_prepare_state_tokenizer_processor_step",
    "tokenizer_processor",
    "device_processor",
)


def pi0_export(checkpoint: Any) -> Export:
    return _export(checkpoint, _PI0_STEPS)


def pi05_export(checkpoint: Any) -> Export:
    return _export(checkpoint, _PI05_STEPS)


def _export(checkpoint: Any, steps: tuple[str, ...]) -> Export:
    sizes: Pi0Sizes = checkpoint.sizes
    keys = shared_keys({f"{_VLM}model.": ()}, prefix="model.")  # the places of today's transformers
    return Export(
        sources=parameter_sources(sizes, keys),
        more=dict(_unused(checkpoint, sizes)),
        copies={f"{_VLM}lm_head.weight": f"{_LANGUAGE}embed_tokens.weight"},
        steps=steps,
        config={
            "paligemma_variant": "gemma_300m" if sizes.text.width == 1024 else "gemma_2b",
            "action_expert_variant": "gemma_2b" if sizes.expert.width == 2048 else "gemma_300m",
            "num_inference_steps": sizes.num_flow_steps,
            "min_period": sizes.min_period,
            "max_period": sizes.max_period,
            "image_resolution": [sizes.image_size, sizes.image_size],
            "empty_cameras": 0,
            "use_relative_actions": checkpoint.relative_actions,
            "relative_exclude_joints": list(checkpoint.relative_exclude),
            "action_feature_names": list(checkpoint.action_names) or None,
        },
    )


def _unused(checkpoint: Any, sizes: Pi0Sizes) -> Iterator[tuple[str, Tensor]]:
    """Tensors that acting does not use and that LeRobot's network has: from the folder, or zeros."""
    (embedding,) = checkpoint.layout.sources["embedding.weight"]
    dtype = checkpoint.tensor(embedding).dtype
    for target, ends, shape in (
        (
            f"{_LANGUAGE}norm.weight",
            ("language_model.norm.weight", "language_model.model.norm.weight"),
            (sizes.text.width,),
        ),
        (
            _EXPERT_HEAD,
            ("gemma_expert.lm_head.weight", "dit.embed_tokens.weight"),
            (sizes.vocabulary, sizes.expert.width),
        ),
    ):
        found = [key for key in checkpoint.files.shapes if key.endswith(ends)]
        yield target, checkpoint.tensor(found[0]) if found else torch.zeros(shape, dtype=dtype)
