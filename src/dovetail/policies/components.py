"""The named parts of a policy, each from a checkpoint of its own, and frozen or trained.

policy:
  type: flow
  components:
    encoder: {checkpoint: runs/pretrained, frozen: true}
    normalizer: {checkpoint: old_stats.pkl}

Nothing is read here: whoever builds a policy reads what its `parts` name, and hands the arrays to `load_components`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field
from torch import nn

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean

__all__ = ["NORMALIZER", "ComponentConfig", "NetworkPolicyConfig", "check_component_names", "freeze", "is_frozen", "trainable_components"]

NORMALIZER = "normalizer"


class ComponentConfig(Config):
    checkpoint: str | None = Field(default=None, min_length=1)
    """What it starts from: a run, its weights or one version of them, a learner's checkpoint, or a safetensors file with
    the part's own arrays; for the normalizer also old statistics, .pkl or LeRobot's stats.json. Null: made anew."""
    frozen: bool | None = None
    """True: nothing trains it. Null: networks are trained, and a normalizer that was loaded is not fitted again."""


class NetworkPolicyConfig(Config):
    """What every policy made of networks can be told."""

    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    """Parts that are not made anew, or not trained, by name."""


def is_frozen(name: str, part: ComponentConfig) -> bool:
    if part.frozen is None:
        return name == NORMALIZER and part.checkpoint is not None
    return part.frozen


def check_component_names(parts: Iterable[str], valid: Iterable[str], *, policy: str) -> None:
    names = list(valid)
    for name in parts:
        if name not in names:
            hint = did_you_mean(name, names).rstrip()
            known = "" if "Valid" in hint else f" It has {', '.join(names)}."
            raise UsageError(f"policy '{policy}' has no component '{name}'.{hint}{known}")


def freeze(module: nn.Module) -> None:
    """No gradient, and no statistics of its own that would move while others train."""
    module.requires_grad_(False).eval()


def trainable_components(modules: Mapping[str, nn.Module], *, algorithm: str) -> dict[str, nn.Module]:
    """Those that are not frozen; refused if there are none."""
    found = {name: m for name, m in modules.items() if any(p.requires_grad for p in m.parameters())}
    if not found:
        raise UsageError(
            f"algorithm '{algorithm}' has nothing to train: {', '.join(modules)} is frozen in policy.components"
        )
    return found
