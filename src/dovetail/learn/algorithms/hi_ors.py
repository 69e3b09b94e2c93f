"""Hi-ORS: keep an episode only if it went well enough, and imitate what was reached in it (Lu et al., 2025).

No value is ever estimated: what was rejected teaches nothing, and a person's corrections are part of what was accepted.
The bar is raised round by round. Imitated is where the arm really went, with the policy's own loss: for a flow policy
that is flow matching at every time of the way from noise to actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.achieved import gripper_axes, is_delta
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.descent import Descent
from dovetail.policies.embodiments import Canonical
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["HiORS", "HiORSConfig"]


class HiORSConfig(Config):
    batch_size: int = Field(default=64, ge=1)
    demo_share: float = Field(default=0.25, ge=0.0, lt=1.0)
    """Share of each batch that is drawn from demonstrations; the rest are accepted episodes of practice."""
    thresholds: tuple[float, ...] = Field(default=(0.5,), min_length=1)
    """What an episode's rewards must add up to more than, round by round; the last one stays. With the labeler's
    `step_penalty`, a higher one accepts only what was fast."""
    round_updates: int = Field(default=2000, ge=1)
    """Updates, warm-up included, until the next threshold."""
    min_episode_steps: int = Field(default=3, ge=1)
    """Shorter episodes are never accepted: they succeeded by accident."""
    still_std: float = Field(default=1e-3, ge=0.0)
    """A chunk in which no axis varied by more (m, rad, share of the gripper's opening; shares of an axis' range in batches
    of several arms) did not move, and is left out unless the episode ended in it. 0: none is left out; nor is any of a
    policy without chunks, for one state does not vary."""
    targets: Literal["achieved", "executed"] = "achieved"
    """What is imitated: where the arm came, or what it was told. Grippers: what they were told, in either case."""
    human_weight: float = Field(default=4.0, gt=0.0)
    """What a chunk that began in a person's hand counts for, against one of the policy; the paper's is 20."""
    lr: float = Field(default=2.5e-5, gt=0.0)
    weight_decay: float = Field(default=1e-4, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a running average of the policy, this share of it old at each update: 0.999 sways less than the
    latest step. 0: no average."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if any(later < earlier for earlier, later in pairwise(self.thresholds)):
            raise ValueError(f"thresholds {list(self.thresholds)} should rise from round to round")
        return self


class HiORS(Descent):
    """See the Algorithm contract. What no episode of practice has passed yet is filled with what passed the first
    threshold, demonstrations included; without any, nothing is learned until one does."""

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
        grippers = gripper_axes(policy.spec.action, policy.spec.action_kind)[None]
        if isinstance(policy, Canonical):
            grippers = policy.canon.grippers
        self._grippers = torch.from_numpy(grippers).to(self._device)  # [1, A], or [E, A] of each arm
        self._delta = is_delta(policy.spec.action_kind)

    @property
    def threshold(self) -> float:
        """This round's."""
        rounds = self._config.thresholds
        return rounds[min(self._num_updates // self._config.round_updates, len(rounds) - 1)]

    @property
    def wants(self) -> SampleRequest:
        spec, practice = self._policy.spec, self._accepted("online", self.threshold)
        return SampleRequest(
            observation_keys=tuple(spec.observation),
            rows={
                self._accepted("demo", self.threshold): self._num_demo,
                practice: self._config.batch_size - self._num_demo,
            },
            # rewards are not looked at; over the whole chunk, a discount of 0 says that the episode ended in it
            window=Window(horizon=spec.horizon, num_steps=spec.horizon, history=spec.history),
            next_observations=False,
            prompts=spec.prompted,
            achieved=self._config.targets == "achieved" or self._config.still_std > 0.0,
            when_empty=self._accepted("all", self._config.thresholds[0]),
            waits=True,
            shares={"accepted": (practice, View(part="online"))},
        )

    def _accepted(self, part: str, threshold: float) -> View:
        return View(part=part, return_above=threshold, min_episode_steps=self._config.min_episode_steps)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        config, policy = self._config, self._policy
        chunks = policy.spec.horizon > 1
        first = batch["human"][:, 0] if chunks else batch["human"]  # whose hand each chunk began in
        num_demo = self._spread.count_before(self._num_demo)
        corrected = first & (torch.arange(len(first), device=first.device) >= num_demo)
        targets = batch["action"]
        grippers = self._of_rows(batch)
        if config.targets == "achieved":
            targets = torch.where(grippers, targets, batch["achieved"])
        mask = targets.isfinite().all(-1)
        still = torch.zeros_like(first)
        if chunks:
            mask = mask & batch["action/mask"]
            if config.still_std:
                still = self._still(batch["achieved"], batch["action/mask"], grippers) & (batch["discount"] != 0.0)
                mask = mask & ~still[:, None]
        metrics = {
            "threshold": self.threshold,
            "still_share": still.float().mean().item(),
            "correction_share": corrected.float().mean().item(),
        }
        self._num_updates += 1
        kept = {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict is no dict
        done = self._descend({**kept, "target": targets, "kept": mask, "corrected": corrected}, self._loss_of)
        if done:
            metrics["imitation_loss"] = done[0].item()
        return metrics

    def _of_rows(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which axes are grippers, bool [B, A] or [B, 1, A]: like an action, but for what they all share."""
        if len(self._grippers) == 1:
            return self._grippers[0]
        grippers = self._grippers[batch["embodiment"]]
        return grippers if batch["action"].ndim == 2 else grippers[:, None]

    def _loss_of(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, float] | None:
        if self._spread.size == 1 and not batch["kept"].any():
            return None
        return self._loss(
            self._policy.features(self._seen(batch)),
            self._policy.normalize_actions(batch["target"]),
            batch["kept"],
            batch["corrected"],
        )

    def _still(self, achieved: Tensor, there: Tensor, grippers: Tensor) -> Tensor:
        """Chunks [B] of which it is known that nothing moved in them: no axis' standard deviation over the states
        reached, up to the episode's end, is above `still_std`."""
        known = torch.where(there[..., None], achieved, 0.0)
        states = torch.where(~grippers & self._delta, known.cumsum(1), known)  # of deltas, up to where it began
        count = there.sum(1)[:, None]
        mean = torch.where(there[..., None], states, 0.0).sum(1) / count
        deviation = torch.where(there[..., None], states - mean[:, None], 0.0)
        std = (deviation.square().sum(1) / count).sqrt()  # [B, A]
        return (std <= self._config.still_std).all(-1) & (count[:, 0] > 1)  # NaN, or a single state, tells nothing

    def _loss(self, features: Tensor, actions: Tensor, mask: Tensor, corrected: Tensor) -> tuple[Tensor, float]:
        """The policy's own, a mean over actions, in which those of corrections count more; and what it counts for."""
        losses, weights = [], []
        for rows, weight in ((corrected, self._config.human_weight), (~corrected, 1.0)):
            num_actions = int(mask[rows].sum())
            seen, done, there = features, actions, mask & rows.view(-1, *(1,) * (mask.ndim - 1))
            if self._spread.size == 1:  # several processes draw alike, whoever has which rows
                seen, done, there = features[rows], actions[rows], mask[rows]
            if num_actions or self._spread.size > 1:
                loss = self._policy.imitation_loss(seen, done, there, generator=self._generator)
                losses.append(loss)
                weights.append(weight * num_actions)
        if not sum(weights):  # of a sharded policy, all processes go through it all the same
            return torch.stack(losses).sum() * 0.0, 0.0
        weighted = torch.stack(losses) * torch.tensor(weights, device=features.device)
        return weighted.sum() / sum(weights), sum(weights)
