"""The grasp critic of HIL-SERL: a double DQN that chooses to close, leave or open a discrete gripper.

y = r - penalty [the gripper switched] + discount * Q'(s', argmax_a Q(s', a))

The executed command does not tell which choice led to it: for a closed gripper, "close" and "leave" are the same. So every
choice with the same command learns from the step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dovetail.learn.adam import Optimizers
from dovetail.learn.batches import only_driven_axes
from dovetail.policies.discrete_gripper import margin_loss
from dovetail.policies.trainable import HasDiscreteGripper, TrainablePolicy

__all__ = ["GraspCritic"]


class GraspCritic:
    """Learns beside the critic and actor of the other axes. A frozen one only removes the gripper from actions."""

    def __init__(
        self, policy: TrainablePolicy, *, penalty: float, target_range: tuple[float, float] | None, tau: float
    ) -> None:
        assert isinstance(policy, HasDiscreteGripper) and policy.grasp is not None
        self.network: nn.Module = policy.grasp
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.axis = policy.gripper_axis
        self.frozen = not any(p.requires_grad for p in self.network.parameters())
        self._command = policy.spec.observation["gripper"].names.index("command")
        self._penalty, self._target_range, self._tau = penalty, target_range, tau

    def without_gripper(self, actions: Tensor) -> Tensor:
        """Remove the gripper's axis, [B, A] -> [B, A - 1]."""
        return torch.cat((actions[:, : self.axis], actions[:, self.axis + 1 :]), 1)

    def update(
        self,
        optimizers: Optimizers,
        batch: Mapping[str, Tensor],
        s: Tensor,
        a: Tensor,
        s_next: Tensor,
        *,
        bc_weight: float = 0.0,
    ) -> dict[str, Tensor]:
        if self.frozen:
            return {}
        y, same = self.targets(batch, a, s_next)
        loss = self.loss(s, y, same)
        driven = only_driven_axes(batch["human"], batch)
        human = driven if driven.ndim == 1 else driven[:, self.axis]
        if bc_weight and human.any():
            loss = loss + bc_weight * margin_loss(self.network(s[human]), a[human, self.axis] > 0.0)
        optimizers.step(loss, "grasp")
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), optimizers.parameters["grasp"], self._tau)
        return {"grasp_loss": loss.detach()}

    def targets(self, batch: Mapping[str, Tensor], a: Tensor, s_next: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets y [B], and the choices with the same command as the executed one, [B, 3]."""
        was_open, opened = self._was_open(batch), a[:, self.axis] > 0.0
        with torch.no_grad():
            best = self.network(s_next).argmax(1, keepdim=True)
            q_next = self.target(s_next).gather(1, best).squeeze(1)
            y = batch["reward"] + batch["discount"] * q_next
            if self._target_range is not None:
                y = y.clamp(*self._target_range)
            y = y - self._penalty * (opened != was_open)
        return y, torch.stack((~opened, opened == was_open, opened), 1)

    def loss(self, s: Tensor, y: Tensor, same: Tensor) -> Tensor:
        errors = torch.where(same, self.network(s) - y[:, None], 0.0)
        return errors.square().sum() / same.sum()

    def _was_open(self, batch: Mapping[str, Tensor]) -> Tensor:
        gripper = batch["observation/gripper"]
        return (gripper[:, -1] if gripper.ndim == 3 else gripper)[:, self._command] > 0.5
