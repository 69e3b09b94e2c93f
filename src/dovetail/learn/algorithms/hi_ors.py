"""Hi-ORS: imitate the episodes whose return passes a threshold (outcome-based rejection sampling, Lu et al., 2025).

Repeat for each round m, with rising thresholds:
    accept the episodes with a return above threshold m, corrections included (of them, the axes that a person drove)
    minimize the policy's imitation loss on their chunks; corrections have a larger weight

No value is estimated, and rejected episodes teach nothing. By default it imitates the motion that the arm achieved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.core.action_parts import drives_in_parts
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.algorithms.settings import HiORSConfig
from dovetail.learn.batches import only_driven_axes
from dovetail.learn.descent import Descent
from dovetail.policies.embodiments.shared_policy import CanonicalPolicy
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["HiORS", "HiORSConfig"]


class HiORS(Descent):
    """See the Algorithm contract. Until an online episode passes the threshold, the batch is filled with episodes that
    passed the first one, demonstrations included. If there are none, learning waits."""

    Config: ClassVar[type[HiORSConfig]] = HiORSConfig
    name: ClassVar[str] = "hi_ors"

    def __init__(self, config: HiORSConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(
            policy,
            seed=seed,
            max_grad_norm=config.max_grad_norm,
            average=config.average,
            lr=config.lr,
            weight_decay=config.weight_decay,
        )
        self._config = config
        self._num_demo = round(config.batch_size * config.demo_share)
        grippers = policy.spec.axes_of("gripper")[None]
        if isinstance(policy, CanonicalPolicy):
            grippers = policy.canonical_space.grippers
        self._grippers = torch.from_numpy(grippers).to(self._device)  # bool [1, A], or [E, A] for E embodiments
        self._adds_up = torch.from_numpy(_adding_axes(policy.spec)).to(self._device)  # bool [A]

    @property
    def threshold(self) -> float:
        """The threshold of the current round."""
        rounds = self._config.return_thresholds
        return rounds[min(self._num_updates // self._config.updates_per_round, len(rounds) - 1)]

    @property
    def sample_request(self) -> SampleRequest:
        config, spec = self._config, self._policy.spec
        accepted = self._accepted("online", self.threshold)
        return SampleRequest(
            observation_keys=spec.learned_keys,
            rows={
                self._accepted("demo", self.threshold): self._num_demo,
                accepted: config.batch_size - self._num_demo,
            },
            # num_steps of a whole chunk: a discount of 0 then means that the episode ended in the chunk
            window=Window(horizon=spec.horizon, num_steps=spec.horizon, history=spec.history),
            next_observations=False,
            prompts=spec.prompted,
            human_axes=drives_in_parts(spec.parts),
            achieved=config.imitated_actions == "achieved" or config.min_motion_std > 0.0,
            when_empty=self._accepted("all", config.return_thresholds[0]),
            waits=True,
            shares={"accepted": (accepted, View(part="online"))},
        )

    def _accepted(self, part: str, threshold: float) -> View:
        return View(part=part, return_above=threshold, min_episode_steps=self._config.min_episode_steps)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        config, chunked = self._config, self._policy.spec.horizon > 1
        first = batch["human"][:, 0] if chunked else batch["human"]  # bool [B]: a person began the chunk
        num_demo = self._parallel.num_rows_before(self._num_demo)
        correction = first & (torch.arange(len(first), device=first.device) >= num_demo)

        # what to imitate
        targets, grippers = batch["action"], self._gripper_axes(batch)
        if config.imitated_actions == "achieved":
            targets = torch.where(grippers, targets, batch["achieved"])
        mask = targets.isfinite().all(-1)
        still = torch.zeros_like(first)
        if chunked:
            mask = mask & batch["action/mask"]
            if config.min_motion_std:
                still = self._is_still(batch["achieved"], batch["action/mask"], grippers) & (
                    batch["discount"] != 0.0
                )
                mask = mask & ~still[:, None]
        mask = only_driven_axes(mask, batch)
        metrics = {
            "threshold": self.threshold,
            "still_share": still.float().mean().item(),
            "correction_share": correction.float().mean().item(),
        }
        self._num_updates += 1

        # imitate it
        tensors = {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict is not a dict
        step = self._minimize({**tensors, "target": targets, "kept": mask, "correction": correction}, self._loss)
        if step:
            metrics["imitation_loss"] = step[0].item()
        return metrics

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, float] | None:
        """The mean imitation loss over kept actions, with a larger weight for corrections, and the sum of the weights."""
        mask, correction, single = batch["kept"], batch["correction"], self._parallel.size == 1
        if single and not mask.any():
            return None
        observations = self._observations(batch)
        features = self._policy.features(observations)
        actions = self._policy.normalize_actions(batch["target"], observations)
        losses, weights = [], []
        for rows, weight in ((correction, self._config.correction_weight), (~correction, 1.0)):
            num_actions = int(mask[rows].sum())
            if single:
                inputs = features[rows], actions[rows], mask[rows]
            else:  # a mask, so that all processes draw the same noise
                inputs = features, actions, mask & rows.view(-1, *(1,) * (mask.ndim - 1))
            if num_actions or not single:
                losses.append(self._policy.imitation_loss(*inputs, generator=self._generator))
                weights.append(weight * num_actions)
        if not sum(weights):  # a sharded policy needs the backward pass of every process
            return torch.stack(losses).sum() * 0.0, 0.0
        weighted = torch.stack(losses) * torch.tensor(weights, device=features.device)
        return weighted.sum() / sum(weights), sum(weights)

    def _gripper_axes(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which axes are grippers: bool [A], or [B, A] or [B, 1, A] if that depends on the embodiment."""
        if len(self._grippers) == 1:
            return self._grippers[0]
        grippers = self._grippers[batch["embodiment"]]
        return grippers if batch["action"].ndim == 2 else grippers[:, None]

    def _is_still(self, achieved: Tensor, valid: Tensor, grippers: Tensor) -> Tensor:
        """Chunks [B] without motion: no axis varies by more than `min_motion_std` up to the episode's end."""
        known = torch.where(valid[..., None], achieved, 0.0)
        states = torch.where(~grippers & self._adds_up, known.cumsum(1), known)
        count = valid.sum(1)[:, None]
        mean = torch.where(valid[..., None], states, 0.0).sum(1) / count
        deviation = torch.where(valid[..., None], states - mean[:, None], 0.0)
        std = (deviation.square().sum(1) / count).sqrt()  # [B, A]
        # false for NaN and for a single state, of which the motion is unknown
        return (std <= self._config.min_motion_std).all(-1) & (count[:, 0] > 1)


def _adding_axes(spec: PolicySpec) -> Array:
    """Mask [A] of the axes whose actions add up to a state: deltas and velocities, not absolute targets."""
    absolute = ("joint_target", "ee_target")
    return np.concatenate([np.full(part.num_axes, part.kind not in absolute) for part in spec.parts])
