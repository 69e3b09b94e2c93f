"""transformers' own pi0 with the weights of our network, for comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dovetail.bench.vla._folder import config_values, published_tensors
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.sizes import Pi0Sizes
from dovetail.policies.vla.sampler import Inputs

__all__ = ["STOCK", "StockPi0", "stock_config"]

STOCK = "stock transformers, eager"  # the baseline of rows


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
        dtype = next(self._model.parameters()).dtype
        with torch.no_grad():
            actions: Tensor = self._model.sample_actions(**self._arguments(inputs, dtype))
        return actions

    def _arguments(self, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
        sizes = self._sizes
        num_image_tokens = sizes.num_cameras * sizes.vision.num_patches
        image = torch.full((len(inputs.tokens), num_image_tokens), sizes.vocabulary, device=inputs.tokens.device)
        return {
            "state": inputs.state.to(dtype),
            "input_ids": torch.cat((image, inputs.tokens), dim=1),
            "pixel_values": inputs.images.to(dtype),
            "noise": inputs.noise.to(dtype),
            "attention_mask": torch.cat((torch.ones_like(image), inputs.token_mask.long()), dim=1),
            "pixel_attention_mask": inputs.camera_mask,
        }

    def let_learn(self) -> None:
        self._model.requires_grad_(True).train()

    def parameters(self) -> list[nn.Parameter]:
        return list(self._model.parameters())

    def loss(self, inputs: Inputs, actions: Tensor) -> Tensor:
        """Its own loss for normalized actions [B, H, A]."""
        dtype = next(self._model.parameters()).dtype
        found: Tensor = self._model(actions=actions.to(dtype), **self._arguments(inputs, dtype)).loss
        return found.mean()

    def compile(self) -> None:
        """Compile the three transformers. The code between them depends on values and cannot be compiled."""
        vlm = self._model.model.vlm
        for module in (vlm.vision_tower, vlm.language_model, self._model.model.dit):
            module.compile(dynamic=False)


def stock_config(sizes: Pi0Sizes) -> Any:
    """transformers' PI0Config of these sizes."""
    from transformers import PI0Config

    return PI0Config(**config_values(sizes))


def _copy_weights(network: PaliGemmaNetwork, theirs: dict[str, Any]) -> None:
    for key, tensor in published_tensors(network).items():
        theirs[key].copy_(tensor)
