"""The network of Diffusion Policy (Chi et al., 2023): a U-Net over time, and image encoders with a spatial softmax."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.images.resnet import Norm, TorchvisionResNet
from dovetail.policies.lerobot.settings import DiffusionConfig

__all__ = ["ConditionalUnet", "KeypointEncoder"]


class ConditionalUnet(nn.Module):
    """Noisy actions [B, T, A], noise levels [B] and features [B, F] -> [B, T, A]. Features and level scale and shift the
    channels of every block (FiLM)."""

    def __init__(self, config: DiffusionConfig, *, num_actions: int, num_features: int) -> None:
        super().__init__()
        size, channels = config.time_features, config.channels
        self.diffusion_step_encoder = nn.Sequential(
            _LevelEmbedding(size), nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size)
        )

        def block(num_in: int, num_out: int) -> _Block:
            return _Block(num_in, num_out, num_conditions=size + num_features, config=config)

        pairs = list(zip((num_actions, *channels[:-1]), channels, strict=True))
        self.down_modules = nn.ModuleList(
            _Stage(
                (
                    block(num_in, num_out),
                    block(num_out, num_out),
                    nn.Conv1d(num_out, num_out, 3, stride=2, padding=1)
                    if stage + 1 < len(pairs)
                    else nn.Identity(),
                )
            )
            for stage, (num_in, num_out) in enumerate(pairs)
        )
        self.mid_modules = nn.ModuleList(block(channels[-1], channels[-1]) for _ in range(2))
        self.up_modules = nn.ModuleList(
            _Stage(
                (
                    block(2 * num_in, num_out),
                    block(num_out, num_out),
                    nn.ConvTranspose1d(num_out, num_out, 4, stride=2, padding=1),
                )
            )
            for num_out, num_in in reversed(pairs[1:])
        )
        self.final_conv = nn.Sequential(
            _Convolution(channels[0], channels[0], kernel_size=config.kernel_size, num_groups=8),
            nn.Conv1d(channels[0], num_actions, 1),
        )

    def forward(self, x: Tensor, levels: Tensor, features: Tensor) -> Tensor:
        condition = torch.cat((self.diffusion_step_encoder(levels), features), dim=1)
        x, kept = x.transpose(1, 2), []
        for stage in self.down_modules:
            mixed, x = stage(x, condition)
            kept.append(mixed)
        for middle in self.mid_modules:
            x = middle(x, condition)
        for stage in self.up_modules:
            _, x = stage(torch.cat((x, kept.pop()), dim=1), condition)
        return self.final_conv(x).transpose(1, 2)  # type: ignore[no-any-return]


class _Stage(nn.ModuleList):
    """Two blocks, and what changes the length of the time axis."""

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The output of the blocks, and the same with another length."""
        first, second, change_length = self
        mixed: Tensor = second(first(x, condition), condition)
        return mixed, change_length(mixed)


class _LevelEmbedding(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._half = size // 2

    def forward(self, levels: Tensor) -> Tensor:
        index = torch.arange(self._half, device=levels.device)
        phase = levels[:, None] * torch.exp(index * (-math.log(10000.0) / (self._half - 1)))
        return torch.cat((phase.sin(), phase.cos()), dim=-1)


class _Convolution(nn.Module):
    def __init__(self, num_in: int, num_out: int, *, kernel_size: int, num_groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(num_in, num_out, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(num_groups, num_out),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two convolutions around the condition, beside a skip connection."""

    def __init__(self, num_in: int, num_out: int, *, num_conditions: int, config: DiffusionConfig) -> None:
        super().__init__()
        sizes = {"kernel_size": config.kernel_size, "num_groups": config.num_groups}
        self.conv1 = _Convolution(num_in, num_out, **sizes)
        self._scales = config.film_scale
        num_outputs = 2 * num_out if self._scales else num_out
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(num_conditions, num_outputs))
        self.conv2 = _Convolution(num_out, num_out, **sizes)
        self.residual_conv = nn.Identity() if num_in == num_out else nn.Conv1d(num_in, num_out, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden, shift = self.conv1(x), self.cond_encoder(condition)[..., None]
        if self._scales:
            scale, shift = shift.chunk(2, dim=1)
            hidden = hidden * scale
        return self.conv2(hidden + shift) + self.residual_conv(x)  # type: ignore[no-any-return]


class KeypointEncoder(nn.Module):
    """Normalized images [N, 3, H, W] -> [N, 2 * num_keypoints]: the mean position of each keypoint, then a layer."""

    def __init__(self, config: DiffusionConfig, *, image: tuple[int, int], norm: Norm) -> None:
        super().__init__()
        self._resize, self._crop = config.resize, config.crop
        self.backbone = TorchvisionResNet(config.resnet, width=config.width, norm=norm)
        seen = config.crop or config.resize or image
        num_channels, height, width = TorchvisionResNet.map_shape(*seen, channels=config.width)
        self.pool = _SpatialSoftmax(num_channels, height, width, num_keypoints=config.num_keypoints)
        self.out = nn.Linear(2 * config.num_keypoints, 2 * config.num_keypoints)

    def forward(self, images: Tensor) -> Tensor:
        if self._resize is not None:
            images = functional.interpolate(images, size=self._resize, mode="bilinear", antialias=True)
        if self._crop is not None:
            images = _center(images, self._crop)
        return functional.relu(self.out(self.pool(self.backbone(images)).flatten(1)))


class _SpatialSoftmax(nn.Module):
    """Feature maps [N, C, h, w] -> the mean position [N, K, 2] of each keypoint, x and y from -1 to 1."""

    pos_grid: Tensor

    def __init__(self, num_channels: int, height: int, width: int, *, num_keypoints: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(num_channels, num_keypoints, 1)
        # numpy, because torch.linspace differs in the last digit
        xs, ys = np.meshgrid(np.linspace(-1.0, 1.0, width), np.linspace(-1.0, 1.0, height))
        grid = np.stack((xs.ravel(), ys.ravel()), axis=1).astype(np.float32)
        self.register_buffer("pos_grid", torch.tensor(grid))

    def forward(self, maps: Tensor) -> Tensor:
        return self.nets(maps).flatten(2).softmax(dim=-1) @ self.pos_grid  # type: ignore[no-any-return]


def _center(images: Tensor, shape: tuple[int, int]) -> Tensor:
    """The center of images [N, C, H, W]; a half pixel is rounded as torchvision's CenterCrop does."""
    top, left = (round((whole - part) / 2.0) for whole, part in zip(images.shape[-2:], shape, strict=True))
    return images[..., top : top + shape[0], left : left + shape[1]]
