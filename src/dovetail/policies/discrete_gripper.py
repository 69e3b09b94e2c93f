"""A gripper that is chosen, not steered: close it, leave it, open it, by what each is worth (HIL-SERL's grasp critic)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.core.specs import PolicySpec

__all__ = ["CLOSE", "MARGIN", "NUM_CHOICES", "OPEN", "STAY", "HasDiscreteGripper", "gripper_axis", "margin_loss"]

CLOSE, STAY, OPEN = range(3)
NUM_CHOICES = 3
MARGIN = 0.1  # by which a person's choice should be better than the others, where a success is worth 1


@runtime_checkable
class HasDiscreteGripper(Protocol):
    """A policy whose gripper may be chosen by values. `sample` and critics then know nothing of that axis."""

    @property
    def grasp(self) -> nn.Module | None:
        """Features [B, F] to the worth of each choice, [B, 3]; None: the gripper is an axis like the others."""

    @property
    def gripper_axis(self) -> int: ...


def gripper_axis(spec: PolicySpec) -> int:
    """Which axis of an action is the gripper; refused where the policy does not see what the gripper was told last."""
    if "gripper" not in spec.action.names:
        raise UsageError("policy.gripper=discrete needs an action with an axis named 'gripper': leave it out")
    if "command" not in getattr(spec.observation.get("gripper"), "names", ()):
        raise UsageError(
            "policy.gripper=discrete needs observation 'gripper' with its 'command' among policy.inputs: name it there"
        )
    if spec.horizon > 1:
        raise UsageError("policy.gripper=discrete chooses at every tick: leave policy.horizon at 1")
    return spec.action.names.index("gripper")


def margin_loss(worth: Tensor, opened: Tensor, mask: Tensor | None = None) -> Tensor:
    """Until what a person did, to open or to close, is better than the rest by a margin (DQfD): the mean over rows, or
    over those where the mask [B] is true."""
    did = torch.where(opened, OPEN, CLOSE)[:, None]
    margin = torch.full_like(worth, MARGIN).scatter(1, did, 0.0)
    missed = (worth + margin).amax(1) - worth.gather(1, did).squeeze(1)
    return missed.mean() if mask is None else torch.where(mask, missed, 0.0).sum() / mask.sum().clamp(min=1)
