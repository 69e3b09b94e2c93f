"""The success classifier's network: what cameras see, and what joints feel where asked, to one number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.policies.encoders import EncoderConfig, FrozenEyes, make_encoder
from dovetail.policies.normalizer import Normalizer

__all__ = ["SuccessNet"]

_HIDDEN = 256
_CHUNK = 64  # frames at a time, where nothing is learned


class SuccessNet(nn.Module):
    """As HIL-SERL has it: encoder -> 256 -> dropout 0.1 -> LayerNorm -> 1.

    Normalisation is inside, so that training and use cannot differ in it: images are uint8 and other observations raw
    wherever this is called. A frozen encoder is no part of what is trained, nor of `state_dict`: `look` sees through it
    once, and training works on what it saw.
    """

    def __init__(
        self, config: EncoderConfig, *, cameras: Mapping[str, ArraySpec], proprio: Mapping[str, ArraySpec]
    ) -> None:
        super().__init__()
        self.cameras, self.proprio = dict(cameras), dict(proprio)
        self.normalizer = Normalizer({key: _size(spec) for key, spec in self.proprio.items()})
        self._eyes = FrozenEyes(config) if config.type == "frozen" else None
        seen = {key: self._eyes.spec(spec) if self._eyes else spec for key, spec in self.cameras.items()}
        specs = list(seen.values())
        self.encoders = nn.ModuleList(make_encoder(config, spec) for spec in specs[: 1 if config.shared else None])
        num_in = config.features * len(self.cameras) + sum(map(_size, self.proprio.values()))
        self.head = nn.Sequential(
            nn.Linear(num_in, _HIDDEN), nn.Dropout(0.1), nn.LayerNorm(_HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1)
        )

    @property
    def shifts(self) -> bool:
        """Whether it is given pixels, which can be moved and tinted, and not maps of a frozen encoder."""
        return self._eyes is None

    def look(self, frames: Mapping[str, Array]) -> dict[str, Tensor]:
        """Frames [N, ...] as `forward` wants them: seen through the frozen encoder, where there is one."""
        # torch warns of arrays that may only be read, such as a camera's: those are copied
        keys = (*self.cameras, *self.proprio)
        tensors = {key: torch.from_numpy(np.require(frames[key], requirements=["C", "W"])) for key in keys}
        if self._eyes is not None:
            tensors |= {key: self._eyes(tensors[key]) for key in self.cameras}
        return tensors

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Logits [N]."""
        encoders = list(self.encoders) * (len(self.cameras) if len(self.encoders) == 1 else 1)
        parts = [encoder(seen[key]) for encoder, key in zip(encoders, self.cameras, strict=True)]
        parts += [self.normalizer(key, seen[key].flatten(1).float()) for key in self.proprio]
        logits: Tensor = self.head(torch.cat(parts, dim=1))
        return logits[:, 0]

    def logits(self, frames: Mapping[str, Array]) -> Array:
        """[N] of raw frames, with nothing to learn and no dropout."""
        num_frames = len(frames[next(iter(self.cameras))])
        was_training = self.training
        self.eval()
        with torch.no_grad():
            pieces = [
                self(self.look({key: value[start : start + _CHUNK] for key, value in frames.items()}))
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
