"""SAC: soft actor-critic (Haarnoja et al., 2018), on all that replay holds, drawn alike.

y     = sum_i gamma^i r_i + gamma^n min_j Q'_j(s', a'),   a' ~ pi(s')
Q     goes to y, and trains the encoder of what is seen
pi    climbs Q(s, a) - alpha log pi(a | s)
alpha holds the entropy where it should be
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.learn.adam import Adam
from dovetail.learn.algorithms._grasp import GraspCritic
from dovetail.learn.algorithms._soft import SoftActorCritic, SoftConfig
from dovetail.learn.batches import side
from dovetail.learn.device import device_of
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.graphs import Graphs, told
from dovetail.learn.spread import Spread
from dovetail.policies.embodiments import Canonical
from dovetail.policies.encoders import random_shift
from dovetail.policies.grasping import Grasping
from dovetail.policies.trainable import CachesFeatures, TrainablePolicy

__all__ = ["SAC", "SACConfig", "SeeingConfig", "num_real"]


class SeeingConfig(SoftConfig):
    random_shift: int | None = Field(default=None, ge=0)
    """Pixels by which the images of a batch are moved at random, each way (DrQ); 0: not at all. None: 4, where an encoder
    of images learns. Not with what a frozen encoder gave: that cannot be moved any more."""
    graphs: bool = False
    """On a GPU: replay each update as one CUDA graph instead of launching its kernels one by one."""
    compiled: bool = False
    """On a GPU: have torch.compile make fewer kernels of the networks, which takes it some seconds at the start."""
    switch_penalty: float = Field(default=0.02, ge=0.0)
    """Of a discrete gripper (policy.gripper): what closing or opening it costs, lest it flutter."""


class SACConfig(SeeingConfig):
    """As SERL runs it."""

    batch_size: int = Field(default=256, ge=2)
    hidden: tuple[int, ...] = Field(default=(256, 256), min_length=1)
    actor_every: int = Field(default=1, ge=1)
    """Critic updates per actor update."""
    actor_q: Literal["mean", "min"] = "mean"
    """What the actor climbs: the mean of the critics, or the least of them."""
    temperature: float = Field(default=0.01, gt=0.0)
    target_entropy: float | None = None
    """None: minus half the number of action dimensions."""


class SAC(SoftActorCritic):
    """See the Algorithm contract. One `update` is one critic step, and at times one of the actor."""

    Config: ClassVar[type[SeeingConfig]] = SACConfig
    name: ClassVar[str] = "sac"

    def __init__(self, config: SeeingConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        # a policy whose actions have no density says so here, before anything moves
        policy.sample(torch.zeros(1, policy.num_features, device=device_of(policy)), generator=torch.Generator())
        grasps = isinstance(policy, Grasping) and policy.grasp is not None
        learns_grasp = grasps and any(p.requires_grad for p in policy.components["grasp"].parameters())
        others = ("encoder", *(("grasp",) if grasps else ()))
        super().__init__(
            config,
            policy=policy,
            actor={name: module for name, module in policy.components.items() if name not in others},
            target_entropy=self._usual_entropy(policy),
            seed=seed,
            encoder=policy.encoder if len(policy.encoder) else None,
            beside={"grasp": policy.components["grasp"]} if learns_grasp else None,
            num_actions=num_free(policy),
        )
        self._grasp: GraspCritic | None = None
        if isinstance(policy, Grasping) and policy.grasp is not None:
            self._grasp = GraspCritic(policy, policy.spec, penalty=config.switch_penalty)
            if learns_grasp:
                self._modules["grasp_target"] = self._grasp.target
                self._optimizers["grasp"] = Adam(list(policy.grasp.parameters()), lr=config.lr)
        self._shift = _shift(config, policy)
        self._seeing = config
        self._graphs: Graphs | None = None
        if config.graphs and (self._device.type != "cuda" or self._target_encoder is not None or grasps):
            raise UsageError(
                "algorithm.graphs are CUDA's, of policies without an encoder that learns or a discrete gripper: leave "
                "it out, or set the device"
            )
        if config.compiled:
            if self._device.type != "cuda":
                raise UsageError("algorithm.compiled is for a GPU: leave it out, or set the device")
            for module in (self._critic, self._target, *policy.components.values()):
                module.compile()

    @staticmethod
    def _usual_entropy(policy: TrainablePolicy) -> float:
        return -0.5 * num_real(policy)

    def spread(self, spread: Spread) -> None:
        if self._grasp is not None and not spread.alone:
            raise UsageError("policy.gripper=discrete learns in one process: set learner.ranks=1")
        if self._seeing.graphs and spread.size > 1:
            raise UsageError("algorithm.graphs are of one process: leave it out, or set learner.ranks=1")
        super().spread(spread)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        if not self._replays:
            return told(self._learn(batch))
        facts = self._replayed({name: batch[name] for name in batch.keys()})  # noqa: SIM118 - a TensorDict is no dict
        if not all(map(math.isfinite, facts.values())):
            raise SkippedUpdate(f"of {', '.join(n for n, v in facts.items() if not math.isfinite(v))}, not finite")
        return facts

    def _replayed(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        if self._graphs is None:
            self._graphs = Graphs(self._generator)
        return self._graphs(self._learn, batch, variant=self._actor_is_due())

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self._graphs = None  # what was captured may read statistics that are no more

    @property
    def _replays(self) -> bool:
        return self._seeing.graphs

    def _learn(self, batch: Mapping[str, Tensor], *, variant: bool | None = None) -> dict[str, Tensor | float]:
        """One step of the critic and, in the `variant` with it, one of the actor; None: where it is due."""
        features = self._policy.features(self._shifted(side(batch, "observation")))
        with torch.no_grad():
            next_features = self._policy.features(self._shifted(side(batch, "next")), encoder=self._target_encoder)
        actions, human = self._executed(batch), batch["human"]
        metrics: dict[str, Tensor | float] = {}
        seen_actions = actions
        if self._grasp is not None:
            seen_actions = self._grasp.others(actions)
            if "grasp" in self._optimizers:  # it is not frozen
                metrics |= self._update_grasp(self._grasp, features.detach(), actions, next_features, batch)
        metrics |= self._update_critic(features, seen_actions, batch["reward"], batch["discount"], next_features)
        if self._actor_is_due() if variant is None else variant:
            if self._horizon > 1:  # up to the end, and to where a person handed back
                human = (human & batch["action/mask"]).cumprod(1).bool()
            metrics |= self._update_actor(features.detach(), actions, human=human)
        return metrics

    @property
    def _clone_weight(self) -> float:
        """What cloning people counts for."""
        return 0.0

    def _shifted(self, seen: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self._shift:
            return seen
        return {
            key: random_shift(values, pad=self._shift, generator=self._generator)
            if values.dtype == torch.uint8
            else values
            for key, values in seen.items()
        }

    def _update_critic(
        self, features: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_features: Tensor
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            next_actions, next_log_prob = self._policy.sample(next_features, generator=self._generator)
        targets = self._targets(rewards, discounts, next_features, next_actions, next_log_prob)
        return self._fit_critic(features, actions, targets)

    def _update_grasp(
        self,
        grasp: GraspCritic,
        features: Tensor,
        actions: Tensor,
        next_features: Tensor,
        batch: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        targets, same = grasp.targets(batch, actions, next_features, self._soft.target_range)
        loss = grasp.loss(features, targets, same)
        weight = self._clone_weight
        if weight and batch["human"].any():
            loss = loss + weight * grasp.cloning(features, actions, batch["human"])
        parameters: list[Tensor] = list(grasp.network.parameters())
        self._step(loss, {"grasp": parameters})
        with torch.no_grad():
            torch._foreach_lerp_(list(grasp.target.parameters()), parameters, self._soft.tau)
        return {"grasp_loss": loss.detach()}

    def _update_actor(self, features: Tensor, actions: Tensor, *, human: Tensor) -> dict[str, Tensor | float]:
        new_actions, log_prob = self._policy.sample(features, generator=self._generator)
        value = self._judged(self._critic, features, new_actions)
        return self._climb(value, log_prob, extra_loss=self._extra_loss(features, actions, human))

    def _extra_loss(self, features: Tensor, actions: Tensor, human: Tensor) -> Tensor | None:
        """What the actor's loss has besides, given what was done, and what of it by people, [B] or [B, H]."""
        return None


def num_free(policy: TrainablePolicy) -> int:
    """Numbers that a policy draws at once."""
    grasps = isinstance(policy, Grasping) and policy.grasp is not None
    return policy.spec.horizon * (policy.spec.action.shape[0] - grasps)


def num_real(policy: TrainablePolicy) -> float:
    """Of these, how many an arm has: of arms that share a policy, on average."""
    if not isinstance(policy, Canonical):
        return num_free(policy)
    return policy.spec.horizon * float(policy.canon.action_masks.sum(1).mean())


def _shift(config: SeeingConfig, policy: TrainablePolicy) -> int:
    """Pixels, as configured; refused where there is nothing to move."""
    has_images = any(spec.is_image for spec in policy.spec.observation.values())
    cached = isinstance(policy, CachesFeatures) and bool(policy.caches)
    if config.random_shift and (cached or not has_images):
        reason = (
            "moves pixels, but of a frozen encoder's images only the features are kept"
            if cached
            else f"moves images, and policy '{policy.spec.name}' looks at none"
        )
        raise UsageError(
            f"algorithm.random_shift {reason}: leave it out, or choose another policy.encoder or inputs"
        )
    if config.random_shift is None:
        return 4 if has_images and not cached else 0
    return config.random_shift
