"""Network of the success classifier: camera images, and optionally low-dimensional observations, to one logit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.policies.images.encoders import EncoderConfig, FrozenEncoder, make_encoder
from dovetail.policies.normalizer import Normalizer

__all__ = ["SuccessNet"]

_HIDDEN = 256
_CHUNK = 64  # frames at a time during inference


class SuccessNet(nn.Module):
    """As in HIL-SERL: encoder -> 256 -> dropout 0.1 -> LayerNorm -> 1.

    Inputs are uint8 images and raw observations; the network normalizes them itself. A frozen encoder is not trained and
    not in `state_dict`: `encode` applies it once, and training uses its output.
    """

    def __init__(
        self, config: EncoderConfig, *, cameras: Mapping[str, ArraySpec], proprio: Mapping[str, ArraySpec]
    ) -> None:
        super().__init__()
        self.cameras, self.proprio = dict(cameras), dict(proprio)
        self.normalizer = Normalizer({key: _size(spec) for key, spec in self.proprio.items()})
        self._frozen_encoder = FrozenEncoder(config) if config.type == "frozen" else None
        seen = {
            key: self._frozen_encoder.spec(spec) if self._frozen_encoder else spec
            for key, spec in self.cameras.items()
        }
        specs = list(seen.values())
        self.encoders = nn.ModuleList(make_encoder(config, spec) for spec in specs[: 1 if config.shared else None])
        num_in = config.features * len(self.cameras) + sum(map(_size, self.proprio.values()))
        self.head = nn.Sequential(
            nn.Linear(num_in, _HIDDEN), nn.Dropout(0.1), nn.LayerNorm(_HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1)
        )

    @property
    def uses_pixels(self) -> bool:
        """Whether the inputs are pixels, which can be augmented, and not features of a frozen encoder."""
        return self._frozen_encoder is None

    def encode(self, frames: Mapping[str, Array]) -> dict[str, Tensor]:
        """Convert frames [N, ...] to inputs of `forward`; applies the frozen encoder, if there is one."""
        # torch warns about read-only arrays, such as a camera's, so those are copied
        keys = (*self.cameras, *self.proprio)
        tensors = {key: torch.from_numpy(np.require(frames[key], requirements=["C", "W"])) for key in keys}
        if self._frozen_encoder is not None:
            tensors |= {key: self._frozen_encoder(tensors[key]) for key in self.cameras}
        return tensors

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Logits [N]."""
        encoders = list(self.encoders) * (len(self.cameras) if len(self.encoders) == 1 else 1)
        parts = [encoder(seen[key]) for encoder, key in zip(encoders, self.cameras, strict=True)]
        parts += [self.normalizer(key, seen[key].flatten(1).float()) for key in self.proprio]
        logits: Tensor = self.head(torch.cat(parts, dim=1))
        return logits[:, 0]

    def logits(self, frames: Mapping[str, Array]) -> Array:
        """Return logits [N] of raw frames, without gradients and dropout."""
        num_frames = len(frames[next(iter(self.cameras))])
        was_training = self.training
        self.eval()
        with torch.no_grad():
            pieces = [
                self(self.encode({key: value[start : start + _CHUNK] for key, value in frames.items()}))
                for start in range(0, num_frames, _CHUNK)
            ]
        self.train(was_training)
        array: Array = torch.cat(pieces).numpy()
        return array


def _size(spec: ArraySpec) -> int:
    size = 1
    for length in spec.shape:
        size *= length
    return size
