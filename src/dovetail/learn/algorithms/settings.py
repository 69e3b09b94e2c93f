"""Settings of the algorithms. This module loads no torch, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.config.model import Config

__all__ = [
    "ChunkDensity",
    "CriticConfig",
    "DSRLConfig",
    "HGDAggerConfig",
    "HiORSConfig",
    "ImitationConfig",
    "PPOConfig",
    "RECAPConfig",
    "RLPDConfig",
    "RLTConfig",
    "ResidualRLConfig",
    "SACConfig",
    "SACFamilyConfig",
    "SACFlowConfig",
    "SoftConfig",
]


ChunkDensity = Literal["mean", "joint"]


class CriticConfig(Config):
    """What all algorithms with critics of replayed steps share."""

    BASIC: ClassVar[Collection[str]] = ("batch_size", "lr", "gamma")
    RENAMED: ClassVar[Mapping[str, str]] = {"credit_rescues": "count_rewards_after_takeover"}

    batch_size: int = Field(default=128, ge=2)
    """Steps in one batch."""
    num_steps: int = Field(default=1, ge=1)
    """Rewards that are summed before the critic's estimate follows (n-step returns); at least a whole chunk."""
    count_rewards_after_takeover: bool = True
    """Count rewards after an operator's takeover for the policy's steps before it, within `num_steps`. False: the critic's
    estimate at the takeover replaces them. Ignored for chunks."""
    gamma: float = Field(default=0.97, gt=0.0, lt=1.0)
    """Discount per step."""
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    """Share by which target networks move toward the critic in each update."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Learning rate of all networks, and of a temperature."""
    num_critics: int = Field(default=2, ge=1)
    """Critics in the ensemble."""
    num_target_critics: int = Field(default=2, ge=1)
    """Critics in the random subset whose minimum gives the target."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Layer sizes of a critic."""
    actor_every: int = Field(default=4, ge=1)
    """Critic updates per actor update."""
    actor_after: int = Field(default=0, ge=0)
    """Critic updates before the first actor update, so that a cloned actor starts with a trained critic."""
    actor_q: Literal["mean", "min"] = "min"
    """How the actor's loss combines the critics."""
    target_range: tuple[float, float] | None = None
    """Range of possible returns, to which targets are clipped: [0, 1] for a sparse reward. None: no clipping."""
    actor_average: float = Field(default=0.995, ge=0.0, lt=1.0)
    """The robot gets a moving average of the actor; this share of it is kept at each actor update."""
    max_grad_norm: float = Field(default=10.0, gt=0.0)
    """Norm to which each network's gradient is clipped."""

    @model_validator(mode="after")
    def _check_num_critics(self) -> Self:
        if self.num_target_critics > self.num_critics:
            raise ValueError(
                f"num_target_critics ({self.num_target_critics}) exceeds num_critics ({self.num_critics})"
            )
        return self


class SoftConfig(CriticConfig):
    """What soft actor-critics add: a temperature that keeps the actor's entropy."""

    temperature: float = Field(default=0.02, gt=0.0)
    """Initial temperature alpha."""
    target_entropy: float | None = None
    """Entropy at which the temperature keeps the policy. None: minus the number of action dimensions."""
    backup_entropy: bool = False
    """Add the entropy term to the critic's target."""


class SACFamilyConfig(SoftConfig):
    RENAMED: ClassVar[Mapping[str, str]] = {
        "graphs": "cuda_graphs",
        "compiled": "torch_compile",
        "switch_penalty": "gripper_switch_penalty",
    }

    random_shift: int | None = Field(default=None, ge=0)
    """Pixels by which images are shifted at random (DrQ). 0: none. None: 4 with an image encoder that learns."""
    cuda_graphs: bool = False
    """On a GPU: replay each update as one CUDA graph."""
    torch_compile: bool = False
    """On a GPU: compile the networks with torch.compile, which takes some seconds at the start."""
    gripper_switch_penalty: float = Field(default=0.02, ge=0.0)
    """Penalty for each switch of a discrete gripper (policy.gripper)."""


class SACConfig(SACFamilyConfig):
    """The defaults of SERL."""

    batch_size: int = Field(default=256, ge=2)
    """Steps in one batch."""
    hidden: tuple[int, ...] = Field(default=(256, 256), min_length=1)
    """Layer sizes of a critic."""
    actor_every: int = Field(default=1, ge=1)
    """Critic updates per actor update."""
    actor_q: Literal["mean", "min"] = "mean"
    """How the actor's loss combines the critics."""
    temperature: float = Field(default=0.01, gt=0.0)
    """Initial temperature alpha."""
    target_entropy: float | None = None
    """Entropy at which the temperature keeps the policy. None: minus half the number of action dimensions."""


class RLPDConfig(SACFamilyConfig):
    BASIC: ClassVar[Collection[str]] = ("bc_weight",)
    RENAMED: ClassVar[Mapping[str, str]] = {"climb_from": "actor_q_from_update"}

    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of each batch drawn from demonstrations and interventions."""
    bc_weight: float = Field(default=0.0, ge=0.0)
    """Weight of the imitation loss in the actor's loss."""
    actor_q_from_update: int = Field(default=0, ge=0)
    """Update from which the actor's loss includes Q. Before it, the actor only clones what people do, because a critic that
    has seen few failures misleads it."""

    @model_validator(mode="after")
    def _check_cloning(self) -> Self:
        if self.actor_q_from_update and not self.bc_weight:
            raise ValueError("actor_q_from_update lets the actor only clone at first. Set bc_weight too")
        return self


class SACFlowConfig(RLPDConfig):
    target_entropy: float | None = None
    """Target entropy of a path. None: the entropy of x_0, minus the number of action dimensions for each step."""


class DSRLConfig(SoftConfig):
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of each batch drawn from demonstrations and interventions."""
    target_entropy: float | None = None
    """Target entropy of the noise, in units of its largest value. None: minus half of its dimensions."""


class ResidualRLConfig(RLPDConfig):
    base_updates: int = Field(default=1000, ge=0)
    """Updates during which the base acts alone. The critic learns from its episodes."""
    growth_updates: int = Field(default=2000, ge=1)
    """Updates after `base_updates` in which the limit of corrections grows linearly from 0 to policy.max_correction."""
    success_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of each batch drawn from successful episodes of any source. It is taken from the online steps."""
    target_entropy: float | None = None
    """Target entropy of the corrections, in units of their limits. None: minus the number of their dimensions."""

    @model_validator(mode="after")
    def _check_fractions(self) -> Self:
        if self.prior_fraction + self.success_fraction > 1.0:
            raise ValueError("prior_fraction and success_fraction exceed 1 together")
        return self


class RLTConfig(CriticConfig):
    BASIC: ClassVar[Collection[str]] = ("lr", "beta")

    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of each batch drawn from demonstrations and interventions."""
    token_updates: int = Field(default=2000, ge=0)
    """First updates, in which only the token learns, from demonstrations. Then it is frozen. Let learner.warmup_updates
    include them."""
    base_updates: int = Field(default=1000, ge=0)
    """Updates after `token_updates` in which the base acts alone: the critic learns, and the actor only imitates."""
    beta: float = Field(default=0.3, ge=0.0)
    """Weight of the actor's distance to the proposal, or to what a person did."""
    correction_weight: float = Field(default=1.0, gt=0.0)
    """Weight of the distance to a chunk that a person began, against 1 for proposals."""
    dropped_share: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of the rows in which the actor's update sees zeros instead of the proposal, so that it does not only copy it."""


class PPOConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("num_envs", "rollout_steps", "batch_size", "lr")
    RENAMED: ClassVar[Mapping[str, str]] = {
        "record": "record_episodes",
        "clip": "clip_ratio",
        "max_weight": "max_importance_weight",
    }

    num_envs: int = Field(default=4, ge=1, le=1024)
    """Simulated worlds side by side."""
    rollout_steps: int = Field(default=256, ge=2)
    """Steps of each world between two updates: actions, or chunks of a policy with `horizon` over 1."""
    num_processes: int = Field(default=1, ge=1, le=256)
    """Processes in which the worlds run. Rollouts do not depend on it."""
    asynchronous: bool = False
    """Collect the next rollout in another process during the update."""
    max_staleness: int = Field(default=1, ge=0)
    """Versions by which an asynchronous collector's weights may be older than the learner's before it waits."""
    record_episodes: bool = False
    """Write the rollouts' episodes to the run's log. They are not learned from again."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Learning rate of the actor."""
    value_lr: float | None = Field(default=None, gt=0.0)
    """Learning rate of the value network. None: `lr`."""
    std_lr: float | None = Field(default=None, gt=0.0)
    """Learning rate of a Gaussian's standard deviation, which needs many steps at the actor's rate. None: `lr`."""
    actor_after: int = Field(default=0, ge=0)
    """Rollouts before the first actor update, so that a cloned actor starts with a trained value network."""
    num_epochs: int = Field(default=10, ge=1)
    """Passes over each rollout."""
    batch_size: int = Field(default=128, ge=2)
    """Steps in one minibatch."""
    gamma: float = Field(default=0.99, gt=0.0, le=1.0)
    """Discount per action."""
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    """Lambda of the generalized advantages."""
    clip_ratio: float = Field(default=0.2, gt=0.0)
    """Range eps of the probability ratio beyond which an action gains nothing."""
    chunk_density: ChunkDensity = "mean"
    """The density of a chunk in the ratio: the mean over its executed actions and their axes, or their joint density."""
    start_kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the KL divergence from the policy before the first update, for example a cloned one. 0: none."""
    entropy_coef: float = Field(default=0.01, ge=0.0)
    """Weight of the entropy in the loss."""
    value_coef: float = Field(default=0.5, ge=0.0)
    """Weight of the value loss."""
    max_grad_norm: float = Field(default=0.5, gt=0.0)
    """Norm to which each network's gradient is clipped."""
    max_importance_weight: float = Field(default=5.0, ge=1.0)
    """Largest weight of a stale step."""
    target_kl: float | None = Field(default=None, gt=0.0)
    """Stop an update after the epoch whose KL divergence exceeds 1.5 times this value. None: run all epochs."""
    adapt_lr: bool = False
    """Lower `lr` after an update beyond `target_kl`, and raise it after one far below."""
    normalize: bool = True
    """Normalize observations by the statistics of all rollouts. False: by those of the demonstrations."""


class ImitationConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("batch_size", "lr")
    RENAMED: ClassVar[Mapping[str, str]] = {"decay_updates": "lr_decay_updates"}

    batch_size: int = Field(default=128, ge=1)
    """Steps, or chunks, in one batch."""
    lr: float = Field(default=1e-3, gt=0.0)
    """Learning rate."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    """Weight decay of AdamW."""
    lr_decay_updates: int | None = Field(default=None, ge=1)
    """Updates over which `lr` falls to 0 along a cosine. None: it stays constant."""
    max_grad_norm: float | None = Field(default=None, gt=0.0)
    """Norm to which the gradient is clipped; null: it is not. A small transformer needs 1.0."""


class HGDAggerConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("batch_size", "lr")

    batch_size: int = Field(default=64, ge=1)
    """Steps, or chunks, in one batch."""
    demo_share: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of each batch drawn from demonstrations; the rest are corrections."""
    lr: float = Field(default=1e-4, gt=0.0)
    """Learning rate: 1e-5 for a large pretrained policy, up to 1e-3 for a small one."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Norm to which the gradient is clipped."""
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a moving average of the weights; this share of it is kept at each update, for example 0.999. 0: the
    latest weights."""


class HiORSConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("batch_size", "lr")
    RENAMED: ClassVar[Mapping[str, str]] = {
        "thresholds": "return_thresholds",
        "round_updates": "updates_per_round",
        "still_std": "min_motion_std",
        "targets": "imitated_actions",
        "human_weight": "correction_weight",
    }

    batch_size: int = Field(default=64, ge=1)
    """Steps, or chunks, in one batch."""
    demo_share: float = Field(default=0.25, ge=0.0, lt=1.0)
    """Share of each batch drawn from demonstrations; the rest are accepted online episodes."""
    return_thresholds: tuple[float, ...] = Field(default=(0.5,), min_length=1)
    """Return that an episode must exceed, one per round; the last one stays. With the labeler's `step_penalty`, a higher one
    accepts only fast episodes."""
    updates_per_round: int = Field(default=2000, ge=1)
    """Updates until the next threshold, warm-up included."""
    min_episode_steps: int = Field(default=3, ge=1)
    """Shorter episodes are rejected: they succeeded by accident."""
    min_motion_std: float = Field(default=1e-3, ge=0.0)
    """A chunk is left out if no axis has a larger standard deviation (m, rad, share of the gripper's opening; share of the
    axis' range for several arms) and the episode goes on after it. 0: keep all. Ignored without chunks."""
    imitated_actions: Literal["achieved", "executed"] = "achieved"
    """Imitate the motion that the arm achieved, or the commands that it executed. Grippers: always the commands."""
    correction_weight: float = Field(default=4.0, gt=0.0)
    """Weight of a chunk that begins in a correction, against 1 for others; the paper uses 20."""
    lr: float = Field(default=2.5e-5, gt=0.0)
    """Learning rate."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Norm to which the gradient is clipped."""
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a moving average of the weights; this share of it is kept at each update, for example 0.999. 0: the
    latest weights."""

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if any(later < earlier for earlier, later in pairwise(self.return_thresholds)):
            raise ValueError(f"return_thresholds {list(self.return_thresholds)} must not fall from round to round")
        return self


class RECAPConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("lr", "max_steps")

    batch_size: int = Field(default=64, ge=1)
    """Steps, or chunks, in one batch."""
    demo_share: float = Field(default=0.25, ge=0.0, lt=1.0)
    """Share of each batch drawn from demonstrations; the rest are online episodes, successful or not."""
    demos_positive: bool = True
    """Count each step of a demonstration as positive, like a correction. False: its advantage decides."""
    max_steps: int = Field(default=200, ge=1)
    """Steps to success that have the value -1, the lowest one. Use the steps of the time limit."""
    failure_steps: int | None = Field(default=None, ge=0)
    """Steps that a failed episode adds to its remaining steps. None: `max_steps`, so that failing has the lowest value."""
    num_steps: int = Field(default=10, ge=1)
    """Steps of the advantage: the value after so many steps, minus the value before, minus the steps."""
    positive_share: float = Field(default=0.3, gt=0.0, lt=1.0)
    """Share of the steps of each prompt that count as positive, apart from those of people."""
    num_recent: int = Field(default=4096, ge=64)
    """Newest advantages from which the threshold of each prompt is computed."""
    dropped_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of the rows without an indicator, so that guidance can compare with and without."""
    num_bins: int = Field(default=51, ge=2)
    """Bins of the value distribution, from -1 to 0."""
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Layer sizes of the value model."""
    value_lr: float = Field(default=1e-3, gt=0.0)
    """Learning rate of the value model."""
    lr: float = Field(default=1e-4, gt=0.0)
    """Learning rate of the policy: 1e-5 for a large pretrained policy, up to 1e-3 for a small one."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Norm to which the gradient is clipped."""
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a moving average of the weights; this share of it is kept at each update, for example 0.999. 0: the
    latest weights."""
