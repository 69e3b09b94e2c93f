"""A gripper with three discrete choices, picked by their Q-values (HIL-SERL's grasp critic)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.specs import PolicySpec

__all__ = ["CLOSE", "KEEP", "MARGIN", "NUM_CHOICES", "OPEN", "gripper_axis", "margin_loss"]

CLOSE, KEEP, OPEN = range(3)
NUM_CHOICES = 3
MARGIN = 0.1  # by how much the demonstrated choice should exceed the others, if a success is worth 1


def gripper_axis(spec: PolicySpec) -> int:
    """The index of the gripper's action axis. Raise UsageError if the policy does not observe the gripper's command."""
    axes = np.flatnonzero(spec.axes_of("gripper"))
    if len(axes) != 1:
        raise UsageError(
            f"policy.gripper=discrete needs one gripper axis, but the action has {len(axes)}. Set policy.gripper=continuous"
        )
    if "gripper" not in spec.observation or "command" not in spec.observation["gripper"].names:
        raise UsageError(
            "policy.gripper=discrete needs observation 'gripper' with a 'command' value. Add it to policy.inputs"
        )
    if spec.horizon > 1:
        raise UsageError("policy.gripper=discrete chooses at every tick. Set policy.horizon=1")
    return int(axes[0])


def margin_loss(values: Tensor, opened: Tensor, mask: Tensor | None = None) -> Tensor:
    """DQfD's large-margin loss: the demonstrated choice (open or close) should exceed the others by MARGIN. The mean over
    rows, or over those where `mask` [B] is true."""
    demonstrated = torch.where(opened, OPEN, CLOSE)[:, None]
    margin = torch.full_like(values, MARGIN).scatter(1, demonstrated, 0.0)
    loss = (values + margin).amax(1) - values.gather(1, demonstrated).squeeze(1)
    return loss.mean() if mask is None else torch.where(mask, loss, 0.0).sum() / mask.sum().clamp(min=1)
