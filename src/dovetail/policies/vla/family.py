"""What one published model provides. Policy, sampler, folder readers and folder writer are the same for all of them.

family = PI0
checkpoint = open_checkpoint(folder, family)
network = checkpoint.load(device=device, dtype=torch.bfloat16)
prefix = network.prefix(images, camera_mask, tokens, token_mask, state)  # once per chunk
x = x - network.velocity(x, times[step : step + 1], prefix) / num_steps  # from noise to actions
"""

from __future__ import annotations

import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from dovetail.core.types import Array
from dovetail.policies.vla.networks.layer_runner import LayerRunner
from dovetail.policies.vla.networks.transformers import VisionTower, masked_mean

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Export", "Family", "FlowNetwork", "Format", "Layout", "NetworkPart", "PrepareImages"]

Format = Literal["LeRobot", "transformers", "openpi"]  # of a folder


class NetworkPart(nn.ModuleDict):
    """Some modules of a network as one component. They are not called one by one, so precision is up to the network."""

    def __init__(self, modules: Mapping[str, nn.Module], run_layer: LayerRunner) -> None:
        super().__init__(modules)
        self._run_layer = run_layer

    def compute_in_bf16(self) -> None:
        """Compute losses in bfloat16, with these parameters in float32."""
        self._run_layer.is_bf16 = True


class FlowNetwork(nn.Module, metaclass=ABCMeta):  # ABC as a base would have another layout, which FSDP refuses
    """A flow over action chunks. Time goes from 1 (noise) to 0 (actions): x_t = t noise + (1 - t) actions.

    All shapes are fixed and nothing depends on values, so `prefix` and `velocity` can be compiled and captured in a CUDA
    graph."""

    sizes: Any  # VlaSizes of its family
    vision: VisionTower
    embedding: nn.Embedding
    text_layers: nn.ModuleList
    action_out: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.run_layer = LayerRunner()

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that uses the weights. In a learner every use goes through here, because a sharded network has
        whole weights only inside of it."""
        return function(*arguments)

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights over the processes of a mesh (FSDP). The large layers are gathered one at a time."""
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # takes long to load

        # layers return views, which nothing changes in place while gradients are computed
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for layer in (*self.vision.layers, *self.text_layers):
            fully_shard(layer, mesh=mesh)
            for method in ("project", "finish", "keys_values"):  # a text layer is called in these parts
                if hasattr(layer, method):
                    register_fsdp_forward_method(layer, method)
        fully_shard(self, mesh=mesh)

    @property
    def components(self) -> dict[str, NetworkPart]:
        """The parts that can be trained or frozen separately. Every parameter is in exactly one of them."""
        parts: dict[str, dict[str, nn.Module]] = {
            "vision": {"tower": self.vision},
            "text": {"embedding": self.embedding, "text_layers": self.text_layers},
            "expert": self.expert_modules,
        }
        return {name: NetworkPart(part, self.run_layer) for name, part in parts.items()}

    @property
    def expert_modules(self) -> dict[str, nn.Module]:
        """What computes velocities, in each step from noise to actions. The rest reads images and prompt, once per chunk."""
        once = ("vision", "embedding", "text_layers")
        return {name: module for name, module in self.named_children() if name not in once}

    @property
    def dtype(self) -> torch.dtype:
        """Of the tokens: that of the weights, or bfloat16 in an update with `learner.precision=bf16`."""
        weight = self.action_out.weight
        kind = weight.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype

    @abstractmethod
    def prefix(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> Any:
        """Read images [B, C, 3, S, S] in [-1, 1], prompt tokens [B, L] and the normalized state [B, state_size].

        The masks [B, C] and [B, L] are false for absent cameras and for padding. Instead of images, it takes what the
        vision tower made of them, [B, C, T, W]."""

    @abstractmethod
    def prefix_and_embeddings(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> tuple[Any, Tensor, Tensor]:
        """The prefix, what the text model knows of images and prompt, which are its tokens before the last layer [B, P, W],
        and their mask [B, P]. Of the last layer, only keys and values are ever computed."""

    def summary(self, *inputs: Tensor) -> Tensor:
        """The mean of the embeddings, [B, W]. `inputs` are those of `prefix`."""
        return masked_mean(*self.prefix_and_embeddings(*inputs)[1:])

    @abstractmethod
    def velocity(self, x: Tensor, time: Tensor, prefix: Any) -> Tensor:
        """noise - actions, float32, of noisy actions x [B, H, A]. `time` [B or 1, ...] comes from `embed_times`."""

    @abstractmethod
    def embed_times(self, times: Tensor) -> Tensor:
        """All that depends on the times [N] only, [N, ...]."""

    def embed_sine_cosine(self, times: Tensor) -> Tensor:
        """Times [N] as sines and cosines [N, W] of several periods, W the expert's width. Fast ones turn 250 times."""
        sizes = self.sizes
        dtype = torch.float64 if sizes.has_float64_times else torch.float32
        fraction = torch.linspace(0.0, 1.0, sizes.expert.width // 2, dtype=dtype, device=times.device)
        period = sizes.min_period * (sizes.max_period / sizes.min_period) ** fraction
        angles = times.to(dtype)[:, None] * (2.0 * math.pi / period)
        return torch.cat((angles.sin(), angles.cos()), dim=1).to(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The sizes of a network and where its weights are in a folder's files."""

    sizes: Any  # VlaSizes of its family
    sources: Mapping[str, tuple[str, ...]]  # parameter: the tensors that make it, joined along the first axis
    is_unused: Callable[[str], bool]  # tensors that are not needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a LeRobot folder of a checkpoint has."""

    sources: Mapping[str, tuple[str, ...]]  # as in Layout, with LeRobot's names
    more: Mapping[str, Tensor]  # tensors that acting does not use and LeRobot's network has
    copies: Mapping[str, str]  # such tensors that equal another one: its name
    steps: tuple[str, ...]  # names of the steps of the preprocessor
    config: Mapping[str, Any]  # the family's own entries of config.json


class PrepareImages(Protocol):
    def __call__(self, frames: Array, *, size: int, with_pil: bool, device: torch.device) -> Tensor:
        """uint8 [B, H, W, 3] to float32 [B, 3, size, size] in [-1, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    """Of the policy, and `type` or `model_type` in config.json."""
    network: Callable[[Any], FlowNetwork]
    """A network of these sizes."""
    layouts: Mapping[Format, Callable[[Path, Mapping[str, Any], Mapping[str, tuple[int, ...]]], Layout]]
    """For each format of folders: the layout from folder, config.json and the shapes of all tensors."""
    told_by: Callable[[str], bool]
    """Whether a tensor of this name is in this family's weights only."""
    mode: str
    """Normalization of state and action in openpi's folders, and in LeRobot's that do not say it."""
    steps: frozenset[str]
    """Names of LeRobot's processor steps that only this family has."""
    prompt: Callable[[str, Array, bool], str]
    """The text for the tokenizer from the task, the normalized state [S], and whether the format cleans the task."""
    bos: str | None
    """Token before each prompt."""
    tokenizer_origin: str
    """The model that has the tokenizer."""
    prepare_images: PrepareImages
    cameras: tuple[str, ...]
    """In folders that do not name them."""
    export: Callable[[Any], Export]
    """How a Checkpoint is written as a LeRobot folder."""
    after_state: str | None = None
    """What follows the state in the prompt, if the state is text. It may be cut, and the state may not."""
    masks_any_camera: bool = True
    """Whether any camera may be absent. Otherwise, as many as `empty_cameras` in LeRobot's config.json."""
