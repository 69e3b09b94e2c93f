"""Settings of a policy's components: the checkpoint that each starts from, its class, and whether it is frozen.

policy:
  type: flow
  components:
    encoder: {checkpoint: runs/pretrained, frozen: true}
    normalizer: {checkpoint: old_stats.pkl}

This module reads no files. The builder of a policy reads the checkpoints and passes the arrays to `load_components`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:  # settings are read without torch
    from torch import nn

__all__ = [
    "NORMALIZER",
    "ComponentConfig",
    "NetworkPolicyConfig",
    "ObservationStatistics",
    "TorchPolicyConfig",
    "check_component_names",
    "trainable_components",
]

NORMALIZER = "normalizer"


class ComponentConfig(Config):
    checkpoint: str | None = Field(default=None, min_length=1)
    """Where its weights come from: a run, its weights, one version of them, a learner's checkpoint, or a safetensors file.
    The normalizer can also start from a statistics file (.pkl, LeRobot's stats.json). Null: new weights."""
    model_class: str | None = Field(default=None, pattern=r"^[^:\s]+:[^:\s]+$")
    """Another network in its place, `package.module:Class`: see docs/policies.md. Null: that of the policy."""
    model_options: dict[str, Any] = Field(
        default_factory=dict, alias="model_config"
    )  # pydantic has this name itself
    """Arguments of the constructor of `model_class`. Sizes that the robot decides are added if it takes them."""
    activation: Literal["tanh", "relu", "gelu", "silu", "elu"] | None = None
    """What follows each hidden layer of an MLP (`actor` and `critic` of gaussian_mlp and actor_critic). Null: tanh."""
    frozen: bool | None = None
    """True: never trained. Null: networks are trained; a normalizer with a checkpoint keeps its statistics."""

    @model_validator(mode="after")
    def _check_class(self) -> Self:
        if self.model_options and self.model_class is None:
            raise ValueError("model_config is for a model_class. Name one")
        return self

    def is_frozen(self, name: str) -> bool:
        if self.frozen is None:
            return name == NORMALIZER and self.checkpoint is not None
        return self.frozen


class ObservationStatistics(Config):
    """Mean and standard deviation of each value of one observation."""

    mean: tuple[float, ...]
    """Mean of each value."""
    std: tuple[Annotated[float, Field(gt=0.0)], ...]
    """Standard deviation of each value."""


class TorchPolicyConfig(Config):
    """Where a policy computes its actions. The top-level `device` is where it learns."""

    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Where it computes actions, on the robot's machine or that of `dovetail serve`. Auto: the first GPU, or the CPU if
    there is none. The top-level `device` is where it learns."""
    num_threads: int = Field(default=1, ge=1, le=256)
    """CPU threads of the process that computes actions. More than its free cores make it slower."""


class NetworkPolicyConfig(TorchPolicyConfig):
    """The settings that all policies made of networks have."""

    BASIC: ClassVar[Collection[str]] = ("inputs",)

    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    """Components by name: where their weights come from, whether they are frozen, their activation or class."""
    normalization: dict[str, ObservationStatistics] = Field(default_factory=dict)
    """Statistics of low-dimensional observations by key, for a run without demonstrations, which would replace them. Keys
    without statistics are not normalized."""


def check_component_names(names: Iterable[str], valid: Iterable[str], *, policy: str) -> None:
    valid = list(valid)
    for name in names:
        if name not in valid:
            hint = did_you_mean(name, valid).rstrip()
            all_names = "" if "Valid" in hint else f" It has {', '.join(valid)}."
            raise UsageError(f"policy '{policy}' has no component '{name}'.{hint}{all_names}")


def trainable_components(modules: Mapping[str, nn.Module], *, algorithm: str) -> dict[str, nn.Module]:
    """The components that are not frozen. Raise UsageError if there are none."""
    found = {name: m for name, m in modules.items() if any(p.requires_grad for p in m.parameters())}
    if not found:
        raise UsageError(
            f"algorithm '{algorithm}' has nothing to train: policy.components freezes {', '.join(modules)}"
        )
    return found
