"""transformers' own pi0 with the weights of our network, for comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.policies.vla.checkpoints.keys import parameter_sources
from dovetail.policies.vla.checkpoints.transformers_folder import KEYS
from dovetail.policies.vla.paligemma_network import PaliGemmaNetwork
from dovetail.policies.vla.sampler import Inputs
from dovetail.policies.vla.sizes import GemmaSizes, Pi0Sizes

__all__ = ["StockPi0", "stock_config"]


class StockPi0:
    """Needs transformers with `PI0ForConditionalGeneration` and its present names of weights."""

    def __init__(self, network: PaliGemmaNetwork) -> None:
        from transformers import PI0ForConditionalGeneration

        self._sizes = network.sizes
        parameter = next(network.parameters())
        default = torch.get_default_dtype()
        torch.set_default_dtype(
            parameter.dtype
        )  # not `to`, which would round the frequencies of time and positions
        try:
            with parameter.device:
                model: Any = PI0ForConditionalGeneration(stock_config(network.sizes))
        finally:
            torch.set_default_dtype(default)
        self._model = model.eval().requires_grad_(False)
        _copy_weights(network, dict(model.named_parameters()))

    def __call__(self, inputs: Inputs) -> Tensor:
        sizes, dtype = self._sizes, next(self._model.parameters()).dtype
        num_image_tokens = sizes.num_cameras * sizes.vision.num_patches
        image = torch.full((len(inputs.tokens), num_image_tokens), sizes.vocabulary, device=inputs.tokens.device)
        with torch.no_grad():
            actions: Tensor = self._model.sample_actions(
                state=inputs.state.to(dtype),
                input_ids=torch.cat((image, inputs.tokens), dim=1),
                pixel_values=inputs.images.to(dtype),
                noise=inputs.noise.to(dtype),
                attention_mask=torch.cat((torch.ones_like(image), inputs.token_mask.long()), dim=1),
                pixel_attention_mask=inputs.camera_mask,
            )
        return actions

    def compile(self) -> None:
        """Compile the three transformers. The code between them depends on values and cannot be compiled."""
        vlm = self._model.model.vlm
        for module in (vlm.vision_tower, vlm.language_model, self._model.model.dit):
            module.compile(dynamic=False)


def stock_config(sizes: Pi0Sizes) -> Any:
    """transformers' PI0Config of these sizes."""
    from transformers import PI0Config

    vision = sizes.vision
    vlm = {
        "model_type": "paligemma",
        "text_config": _gemma(sizes.text, sizes),
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": vision.width,
            "intermediate_size": vision.mlp_width,
            "num_hidden_layers": vision.num_layers,
            "num_attention_heads": vision.num_heads,
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "projection_dim": sizes.text.width,
            "vision_use_head": False,
        },
        "projection_dim": sizes.text.width,
        "image_token_id": sizes.vocabulary,
    }
    return PI0Config(
        vlm_config=vlm,
        dit_config=_gemma(sizes.expert, sizes),
        chunk_size=sizes.horizon,
        max_state_dim=sizes.state_size,
        max_action_dim=sizes.action_size,
        num_inference_steps=sizes.num_flow_steps,
    )


def _gemma(of: GemmaSizes, sizes: Pi0Sizes) -> dict[str, Any]:
    return {
        "model_type": "gemma",
        "hidden_size": of.width,
        "num_hidden_layers": of.num_layers,
        "intermediate_size": of.mlp_width,
        "num_attention_heads": of.num_heads,
        "num_key_value_heads": of.num_kv_heads,
        "head_dim": of.head_size,
        "vocab_size": sizes.vocabulary,
    }


def _copy_weights(network: PaliGemmaNetwork, theirs: dict[str, Any]) -> None:
    ours = dict(network.named_parameters())
    for name, keys in parameter_sources(network.sizes, KEYS).items():
        first = 0
        for key in keys:
            rows = ours[name].narrow(0, first, len(theirs[key]))
            theirs[key].copy_(rows)
            first += len(rows)
