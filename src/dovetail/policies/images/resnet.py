"""ResNet-18 and ResNet-34 (He et al., 2015) with torchvision's names of parameters, so that their weights load."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Norm", "TorchvisionResNet"]

Norm = Literal["group", "frozen_batch"]
_NUM_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_STRIDE = 32


class FrozenBatchNorm(nn.Module):
    """Batch normalization by stored statistics. Nothing of it is trained."""

    EPSILON = 1e-5

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        for name, values in (("weight", torch.ones), ("bias", torch.zeros)):
            self.register_buffer(name, values(num_channels))
        for name, values in (("running_mean", torch.zeros), ("running_var", torch.ones)):
            self.register_buffer(name, values(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.EPSILON).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class TorchvisionResNet(nn.Module):
    """Normalized images [N, 3, H, W] -> feature map [N, 8 * width, ceil(H / 32), ceil(W / 32)].

    Group normalization suits new weights, frozen batch normalization those of ImageNet.
    """

    def __init__(self, num_layers: Literal[18, 34], *, width: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = _norm(norm, width)
        num_in = width
        for stage, num_blocks in enumerate(_NUM_BLOCKS[num_layers]):
            num_out = width << stage
            blocks = []
            for block in range(num_blocks):
                stride = 2 if stage and not block else 1
                blocks.append(_Block(num_in, num_out, stride=stride, norm=norm))
                num_in = num_out
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.max_pool2d(hidden, 3, stride=2, padding=1)
        for name in ("layer1", "layer2", "layer3", "layer4"):
            hidden = self.get_submodule(name)(hidden)
        return hidden

    @staticmethod
    def map_shape(height: int, width: int, *, channels: int) -> tuple[int, int, int]:
        """The shape of the feature map of an image; `channels` is the width of the first stage."""
        return 8 * channels, -(-height // _STRIDE), -(-width // _STRIDE)


class _Block(nn.Module):
    def __init__(self, num_in: int, num_out: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _norm(norm, num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.bn2 = _norm(norm, num_out)
        self.downsample: nn.Module | None = None
        if stride > 1 or num_in != num_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), _norm(norm, num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(x)))
        hidden = self.bn2(self.conv2(hidden))
        return functional.relu(hidden + (x if self.downsample is None else self.downsample(x)))


def _norm(norm: Norm, num_channels: int) -> nn.Module:
    return nn.GroupNorm(num_channels // 16, num_channels) if norm == "group" else FrozenBatchNorm(num_channels)
