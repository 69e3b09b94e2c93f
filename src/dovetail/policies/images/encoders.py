"""Image encoders: a small CNN, a ResNet with spatial learned embeddings, or a frozen backbone with a trained head.

encoder: {type: cnn}                                     small, all of it trained
encoder: {type: resnet, width: 64}                       SERL's ResNet-10, all of it trained
encoder: {type: cnn, depth_range_m: [0.2, 1.0]}          depth images beside color, each with its own network
encoder: {type: frozen, arch: mobilenet_v2, file: F}     only the head is trained; the replay stores the backbone's
                                                         feature maps instead of the pixels
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.core.specs import ArraySpec
from dovetail.policies.images.backbones import Backbone, ResNet, load_backbone
from dovetail.policies.random_draws import integers
from dovetail.policies.settings import EncoderConfig

__all__ = [
    "EncoderConfig",
    "FrozenEncoder",
    "ImageEncoder",
    "SpatialEmbedding",
    "depth_channels",
    "make_encoder",
    "random_shift",
]

NUM_KERNELS = 8
NUM_DEPTH_CHANNELS = 2  # distance, and whether it was measured


def make_encoder(config: EncoderConfig, seen: ArraySpec) -> nn.Module:
    """The trained part, [N, *seen.shape] -> [N, features]. For a frozen encoder, `seen` is the backbone's output. For depth,
    its input has the channels of `depth_channels`."""
    if seen.is_depth:
        seen = ArraySpec(shape=(*seen.shape[:2], NUM_DEPTH_CHANNELS))
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
    """SERL's spatial learned embeddings, [N, h, w, c] -> [N, num_features]: eight learned spatial kernels per channel, then
    a bottleneck, LayerNorm and tanh."""

    def __init__(self, shape: tuple[int, ...], *, num_features: int) -> None:
        super().__init__()
        height, width, channels = shape
        # keeps the variance of each sum equal to that of its inputs
        scale = (height * width) ** -0.5
        self.kernels = nn.Parameter(scale * torch.randn(channels, height * width, NUM_KERNELS))
        self.out = nn.Sequential(
            nn.Linear(channels * NUM_KERNELS, num_features), nn.LayerNorm(num_features), nn.Tanh()
        )

    def forward(self, maps: Tensor) -> Tensor:
        cells = maps.flatten(1, 2).permute(2, 0, 1).float()  # [c, N, h * w]
        sums = torch.bmm(cells, self.kernels)  # [c, N, 8]
        features: Tensor = self.out(sums.permute(1, 0, 2).flatten(1))
        return features


class FrozenEncoder:
    """A frozen backbone. It is not part of the policy's weights; every process reads it from the file."""

    def __init__(self, config: EncoderConfig) -> None:
        assert config.file is not None, "EncoderConfig checks this"
        self._network: Backbone = load_backbone(config.file, arch=config.arch, stride=config.stride)
        self.digest = f"{self._network.digest}/{config.arch}/{config.stride}"

    def spec(self, image: ArraySpec) -> ArraySpec:
        """The spec of the features of one image."""
        return ArraySpec(shape=self._network.map_shape(image.shape), dtype="float16")

    def to(self, device: torch.device) -> None:
        self._network.to(device)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> float16 [N, h, w, c]. One by one, so that the batch size cannot change the result."""
        with torch.no_grad():
            return torch.cat([self._network(image[None]).half() for image in images])


def depth_channels(depth: Tensor, range_m: tuple[float, float]) -> Tensor:
    """uint16 [N, H, W, 1] in millimeters -> float32 [N, H, W, 2] from 0 to 255, as encoders expect pixels: the distance,
    clipped to the range, and whether it was measured (255) or is missing (0, with distance 0)."""
    near, far = range_m
    distance_m = depth.float() / 1000.0
    scaled = ((distance_m - near) / (far - near)).clamp(0.0, 1.0) * 255.0
    measured = (distance_m > 0.0).float()
    return torch.cat((scaled * measured, measured * 255.0), dim=-1)


def random_shift(images: Tensor, *, pad: int, generator: torch.Generator) -> Tensor:
    """DrQ's augmentation: shift the images [B, ..., H, W, C] of each row by up to `pad` pixels and repeat the border. All
    images of one row's history have the same shift."""
    num_rows, (height, width) = len(images), images.shape[-3:-1]
    device = images.device
    offsets = integers(-pad, pad + 1, (2, num_rows, 1), generator=generator, device=device, rows=1)
    ys = (torch.arange(height, device=device) + offsets[0]).clamp(0, height - 1)  # [B, H]
    xs = (torch.arange(width, device=device) + offsets[1]).clamp(0, width - 1)
    rows = torch.arange(num_rows, device=device)[:, None, None]
    flat = images.reshape(num_rows, -1, *images.shape[-3:])
    shifted = torch.stack([frames[rows, ys[:, :, None], xs[:, None, :]] for frames in flat.unbind(1)], dim=1)
    return shifted.view_as(images)
