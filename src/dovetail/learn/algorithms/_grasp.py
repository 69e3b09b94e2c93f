"""The worth of closing, leaving and opening a gripper: a double DQN beside a soft actor-critic (HIL-SERL).

y = r - penalty [the gripper switched] + discount * Q'(s', argmax_a Q(s', a))

What was done is known by what the gripper was told afterwards, so every choice that leads there learns from it: with a
closed gripper, to close it and to leave it are one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dovetail.core.specs import PolicySpec
from dovetail.policies.grasping import Grasping, margin_loss

__all__ = ["GraspCritic"]


class GraspCritic:
    """What `SAC` needs to know of a gripper that is chosen."""

    def __init__(self, policy: Grasping, spec: PolicySpec, *, penalty: float) -> None:
        assert policy.grasp is not None
        self.network: nn.Module = policy.grasp
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.axis = policy.gripper_axis
        self._command = spec.observation["gripper"].names.index("command")
        self._penalty = penalty

    def others(self, actions: Tensor) -> Tensor:
        """Actions without the gripper's axis, [B, A - 1]."""
        return torch.cat((actions[:, : self.axis], actions[:, self.axis + 1 :]), 1)

    def targets(
        self,
        batch: Mapping[str, Tensor],
        actions: Tensor,
        next_features: Tensor,
        limits: tuple[float, float] | None,
    ) -> tuple[Tensor, Tensor]:
        """What was earned [B], and which choices would have done the same [B, 3]."""
        was_open, opened = self._was_open(batch), actions[:, self.axis] > 0.0
        with torch.no_grad():
            best = self.network(next_features).argmax(1, keepdim=True)
            following = self.target(next_features).gather(1, best).squeeze(1)
            worth = batch["reward"] + batch["discount"] * following
            if limits is not None:
                worth = worth.clamp(*limits)
            worth = worth - self._penalty * (opened != was_open)
        return worth, torch.stack((~opened, opened == was_open, opened), 1)

    def loss(self, features: Tensor, targets: Tensor, same: Tensor) -> Tensor:
        errors = torch.where(same, self.network(features) - targets[:, None], 0.0)
        return errors.square().sum() / same.sum()

    def cloning(self, features: Tensor, actions: Tensor, human: Tensor) -> Tensor:
        return margin_loss(self.network(features[human]), actions[human, self.axis] > 0.0)

    def _was_open(self, batch: Mapping[str, Tensor]) -> Tensor:
        seen = batch["observation/gripper"]
        return (seen[:, -1] if seen.ndim == 3 else seen)[:, self._command] > 0.5
