"""What is kept of an image: a small CNN, a ResNet with spatial learned embeddings, or a frozen network with such a head.

encoder: {type: cnn}                                     learns everything, small
encoder: {type: resnet, width: 64}                       learns everything, as SERL's ResNet-10
encoder: {type: frozen, arch: mobilenet_v2, file: F}     learns what to look at; what is looked at never changes,
                                                         so replay holds it instead of the pixels
"""

from __future__ import annotations

import itertools
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from dovetail.config.model import Config
from dovetail.core.specs import ArraySpec
from dovetail.policies.images.backbones import Backbone, ResNet, load_backbone
from dovetail.policies.random_draws import integers

__all__ = ["EncoderConfig", "FrozenEncoder", "ImageEncoder", "SpatialEmbedding", "make_encoder", "random_shift"]

NUM_KERNELS = 8


class EncoderConfig(Config):
    type: Literal["cnn", "resnet", "frozen"] = "cnn"
    features: int = Field(default=256, ge=1)
    """What is kept of an image."""
    shared: bool = False
    """One encoder for all cameras, instead of one for each."""
    width: int = Field(default=64, ge=8, multiple_of=8)
    """Of resnet: channels of its first stage; half of it takes a quarter of the time."""
    arch: Literal["resnet10", "mobilenet_v2"] = "mobilenet_v2"
    """Of frozen: what the file holds."""
    file: str | None = None
    """Of frozen: weights as safetensors; `dovetail encoder convert` makes them."""
    stride: Literal[8, 16, 32] = 16
    """Of frozen: how many pixels one place of its features stands for. Fine work wants it fine, and takes more room."""

    @model_validator(mode="after")
    def _has_a_file(self) -> Self:
        if (self.file is None) == (self.type == "frozen"):
            raise ValueError(
                "encoder type 'frozen' needs a file: make one with `dovetail encoder convert`"
                if self.file is None
                else f"encoder type '{self.type}' learns from nothing: a file goes with type 'frozen'"
            )
        return self


def make_encoder(config: EncoderConfig, seen: ArraySpec) -> nn.Module:
    """The part that learns, [N, *seen.shape] -> [N, features]; of a frozen encoder, `seen` is what that gives."""
    if config.type == "cnn":
        return ImageEncoder(num_channels=seen.shape[2], num_features=config.features)
    if config.type == "frozen":
        return SpatialEmbedding(seen.shape, num_features=config.features)
    backbone = ResNet(width=config.width, num_channels=seen.shape[2])
    return nn.Sequential(backbone, SpatialEmbedding(backbone.map_shape(seen.shape), num_features=config.features))


class ImageEncoder(nn.Module):
    """uint8 [N, H, W, C] of any size -> [N, num_features]: four strided convolutions, then a grid of 4 x 4."""

    def __init__(self, *, num_channels: int, num_features: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for num_in, num_out in itertools.pairwise((num_channels, 16, 32, 32, 32)):
            layers += [nn.Conv2d(num_in, num_out, 3, stride=2, padding=1), nn.SiLU()]
        self.convolutions = nn.Sequential(*layers)
        self.out = nn.Sequential(nn.Linear(32 * 16, num_features), nn.LayerNorm(num_features))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.convolutions(images.permute(0, 3, 1, 2).float() / 255.0 - 0.5)
        features: Tensor = self.out(functional.adaptive_avg_pool2d(hidden, 4).flatten(1))
        return features


class SpatialEmbedding(nn.Module):
    """A map [N, h, w, c] -> [N, num_features], as SERL keeps it: eight learned kernels for each channel say where to
    look, then a bottleneck, LayerNorm and tanh."""

    def __init__(self, shape: tuple[int, ...], *, num_features: int) -> None:
        super().__init__()
        height, width, channels = shape
        # each of a channel's sums has the size of what it adds up
        scale = (height * width) ** -0.5
        self.kernels = nn.Parameter(scale * torch.randn(channels, height * width, NUM_KERNELS))
        self.out = nn.Sequential(
            nn.Linear(channels * NUM_KERNELS, num_features), nn.LayerNorm(num_features), nn.Tanh()
        )

    def forward(self, maps: Tensor) -> Tensor:
        places = maps.flatten(1, 2).permute(2, 0, 1).float()  # [c, N, h * w]
        sums = torch.bmm(places, self.kernels)  # [c, N, 8]
        features: Tensor = self.out(sums.permute(1, 0, 2).flatten(1))
        return features


class FrozenEncoder:
    """A network that never learns. No part of a policy's weights: whoever builds the policy reads the file."""

    def __init__(self, config: EncoderConfig) -> None:
        assert config.file is not None, "the config has seen to it"
        self._network: Backbone = load_backbone(config.file, arch=config.arch, stride=config.stride)
        self.digest = f"{self._network.digest}/{config.arch}/{config.stride}"

    def spec(self, image: ArraySpec) -> ArraySpec:
        """Of what `__call__` makes of one image."""
        return ArraySpec(shape=self._network.map_shape(image.shape), dtype="float16")

    def to(self, device: torch.device) -> None:
        self._network.to(device)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> float16 [N, h, w, c]. One by one: then an image has the same features in every batch."""
        with torch.no_grad():
            return torch.cat([self._network(image[None]).half() for image in images])


def random_shift(images: Tensor, *, pad: int, generator: torch.Generator) -> Tensor:
    """[B, ..., H, W, C], each row moved by up to `pad` pixels each way, its border repeated (DrQ). The images of one
    row's history move together."""
    num_rows, (height, width) = len(images), images.shape[-3:-1]
    device = images.device
    offsets = integers(-pad, pad + 1, (2, num_rows, 1), generator=generator, device=device, rows=1)
    ys = (torch.arange(height, device=device) + offsets[0]).clamp(0, height - 1)  # [B, H]
    xs = (torch.arange(width, device=device) + offsets[1]).clamp(0, width - 1)
    rows = torch.arange(num_rows, device=device)[:, None, None]
    flat = images.reshape(num_rows, -1, *images.shape[-3:])
    moved = torch.stack([frames[rows, ys[:, :, None], xs[:, None, :]] for frames in flat.unbind(1)], dim=1)
    return moved.view_as(images)
