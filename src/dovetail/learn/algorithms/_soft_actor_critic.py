"""What soft actor-critics share: settings, networks, optimizers and checkpoint. Each algorithm's update is in its own file.

Symbols, as in the papers: s features of an observation [B, F]; a normalized action, or flattened chunk, [B, A]; Q the
critics [E, B]; Q' their slowly moving target copies; y the critics' target [B]; pi the actor; alpha the temperature.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.abilities import CachesFeatures
from dovetail.core.action_parts import drives_in_parts
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.adam import Optimizers
from dovetail.learn.algorithms._grasp_critic import GraspCritic
from dovetail.learn.algorithms._own_optimizers import OwnOptimizers
from dovetail.learn.algorithms.settings import CriticConfig, SACFamilyConfig, SoftConfig
from dovetail.learn.batches import observations_of, only_driven_axes
from dovetail.learn.cuda_graphs import CudaGraphs, Update, to_floats
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.device import device_of
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.state import (
    load_generator,
    load_module,
    load_policy,
    module_state,
    policy_state,
    raise_checkpoint_errors,
)
from dovetail.policies.components import trainable_components
from dovetail.policies.embodiments.shared_policy import CanonicalPolicy
from dovetail.policies.images.encoders import random_shift
from dovetail.policies.networks import EnsembleMLP, repeat_last_action
from dovetail.policies.trainable import HasDiscreteGripper, TrainablePolicy, ValuedPolicy

__all__ = [
    "SACFamily",
    "SACFamilyConfig",
    "SoftActorCritic",
    "SoftConfig",
    "num_action_dims",
    "prior_and_online",
]


class SoftActorCritic(OwnOptimizers):
    """All of the Algorithm contract except `update`.

    `actor` names the components that learn from the actor's loss. `others` learn from other losses and are also published.
    The `encoder` learns from the critic's loss only, because two losses on one network disturb each other; targets use a
    slow copy of it. A critic sees whole chunks. Any window of executed actions is a chunk, also across a takeover.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: CriticConfig,
        *,
        policy: TrainablePolicy,
        actor: Mapping[str, nn.Module],
        target_entropy: float = 0.0,
        seed: int,
        encoder: nn.ModuleDict | None = None,
        others: Mapping[str, nn.Module] | None = None,
        num_actions: int | None = None,
    ) -> None:
        if isinstance(policy, ValuedPolicy):
            raise UsageError(
                f"policy '{policy.spec.name}' has its own value network and is for algorithm 'ppo'. Use gaussian_mlp or "
                f"flow_actor for algorithm '{self.name}'"
            )
        self._config, self._policy = config, policy
        # a frozen component gets no optimizer and no average
        actor = trainable_components(actor, algorithm=self.name)
        if encoder is not None and not any(p.requires_grad for p in encoder.parameters()):
            encoder = None
        self._horizon = policy.spec.horizon
        num_actions = num_actions or self._horizon * policy.spec.action.shape[0]
        self._seed, self._device, self._parallel = seed, device_of(policy), DataParallel()
        self._critic = self._make_critic(num_actions, seed=seed)
        self._target = copy.deepcopy(self._critic).requires_grad_(False)
        self._modules: dict[str, nn.Module] = {"critic": self._critic, "target": self._target}
        temperature = (
            config.temperature if isinstance(config, SoftConfig) else 1.0
        )  # of an actor without entropy: unused
        self._log_alpha = torch.tensor(float(np.log(temperature)), requires_grad=True, device=self._device)
        self._target_entropy = target_entropy
        if isinstance(config, SoftConfig) and config.target_entropy is not None:
            self._target_entropy = config.target_entropy
        # an actor fits the encoder that it was trained with, so both are averaged
        published = {**actor, **(others or {}), **({} if encoder is None else {"encoder": encoder})}
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in published.items()}
        self._published_parameters: list[Tensor] = [p for m in published.values() for p in m.parameters()]
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._optimizers = Optimizers(lr=config.lr, max_grad_norm=config.max_grad_norm)
        self._optimizers.add("critic", list(self._critic.parameters()))
        self._optimizers.add("actor", [p for m in actor.values() for p in m.parameters()])
        self._optimizers.add("alpha", [self._log_alpha])
        self._critic_groups: tuple[str, ...] = ("critic",)  # trained by the critic's loss
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._target_encoder: nn.ModuleDict | None = None
        if encoder is not None:
            self._target_encoder = copy.deepcopy(encoder).requires_grad_(False)
            self._modules["target_encoder"] = self._target_encoder
            self._critic_groups = ("critic", "encoder")
            self._target_parameters += list(self._target_encoder.parameters())
            self._optimizers.add("encoder", list(encoder.parameters()))
        self._generator = self._parallel.make_generator(self._device, seed)
        self._num_updates = 0

    def _make_critic(self, num_actions: int, *, seed: int) -> EnsembleMLP:
        config = self._config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = (self._policy.num_features + num_actions, *config.hidden, 1)
            return EnsembleMLP(sizes, num_members=config.num_critics).to(self._device)

    # ---- the steps of an update

    def _actor_is_due(self) -> bool:
        """Whether the next update includes the actor."""
        number = self._num_updates + 1
        return number > self._config.actor_after and number % self._config.actor_every == 0

    def _executed_actions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Normalized actions [B, A], or chunks [B, H * A] in which the last action repeats past the episode's end."""
        actions = self._policy.normalize_actions(batch["action"], observations_of(batch, "observation"))
        if self._horizon > 1:
            actions = repeat_last_action(actions, batch["action/mask"]).flatten(1)
        return actions

    def _min_target_q(self, s: Tensor, a: Tensor) -> Tensor:
        """min_j Q'_j(s, a) over a random subset of the critics, [B]."""
        num_critics, subset = self._config.num_critics, None
        if self._config.num_target_critics < num_critics:
            generator = self._generator
            if generator.device.type == "cuda":  # randperm would synchronize
                order = torch.rand(num_critics, generator=generator, device=generator.device).argsort()
            else:
                order = torch.randperm(num_critics, generator=generator, device=generator.device)
            subset = order[: self._config.num_target_critics]
        q: Tensor = self._target(torch.cat((s, a), 1), subset)
        return q.amin(0)

    def _clip_target(self, y: Tensor) -> Tensor:
        return y if self._config.target_range is None else y.clamp(*self._config.target_range)

    def _step_critic(self, s: Tensor, a: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Minimize sum_j (Q_j(s, a) - y)^2, move the target networks, and count the update."""
        q, loss = self._critic.errors(torch.cat((s, a), 1), y)
        self._optimizers.step(loss, *self._critic_groups)
        online = [p for name in self._critic_groups for p in self._optimizers.parameters[name]]
        with torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, online, self._config.tau)
        self._num_updates += 1
        fit = {"critic_loss": loss.detach() / self._config.num_critics, "target_variance": y.var(correction=0)}
        return {**fit, "q": q.mean()}

    def _actor_q(self, critic: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        """Q(s, a) [B] for the actor's loss. Gradients flow to `a`; none is computed for the critic."""
        critic.requires_grad_(False)
        q = self._combine(critic(torch.cat((s, a), 1)))
        critic.requires_grad_(True)
        return q

    def _combine(self, q: Tensor) -> Tensor:
        """[E, B] -> [B]"""
        return q.mean(0) if self._config.actor_q == "mean" else q.amin(0)

    def _step_actor(self, loss: Tensor) -> dict[str, Tensor | float]:
        """Take one step of the actor, and move the average that the robot gets."""
        self._optimizers.step(loss, "actor")
        with torch.no_grad():
            torch._foreach_lerp_(
                self._averaged_parameters, self._published_parameters, 1.0 - self._config.actor_average
            )
        return {"actor_loss": loss.detach()}

    def _step_temperature(self, alpha: Tensor, log_pi: Tensor) -> dict[str, Tensor | float]:
        """Take one step down alpha * (entropy - target entropy)."""
        entropy = -log_pi.detach().mean()
        slope = alpha * (entropy - self._target_entropy)  # derivative by log alpha
        self._optimizers.step(slope, "alpha", gradients=[slope])
        return {"entropy": entropy, "target_entropy": self._target_entropy, "alpha": alpha}

    # ---- the rest of the Algorithm contract

    @property
    def learns_from_running(self) -> bool:
        """Single steps can be learned from before their episode ends. Chunks cannot: missing actions would look like the
        episode's end."""
        return self._horizon == 1

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        return {**self._policy.components, **self._modules}

    def set_parallel(self, parallel: DataParallel) -> None:
        """Take each step together with other processes. Call before the first update."""
        if parallel.num_micro_batches > 1:
            raise UsageError(
                f"algorithm '{self.name}' does not support micro-batches. Set learner.accumulate=1 and a smaller "
                "algorithm.batch_size"
            )
        self._parallel = self._optimizers.parallel = parallel
        self._generator = parallel.make_generator(self._device, self._seed)

    def _sample_request(self, rows: Mapping[View, int]) -> SampleRequest:
        """Request n-step returns: `reward` is sum_i gamma^i r_i and `discount` is gamma^n, or 0 after a terminal step."""
        config, spec = self._config, self._policy.spec
        return SampleRequest(
            observation_keys=spec.learned_keys,
            rows=rows,
            window=Window(
                gamma=config.gamma,
                num_steps=max(config.num_steps, self._horizon),
                stop_at_takeover=not config.count_rewards_after_takeover and self._horizon == 1,
                horizon=self._horizon,
                history=spec.history,
            ),
            prompts=spec.prompted,
            human_axes=drives_in_parts(spec.parts),
            when_empty=View(),  # before the first online step, or without demonstrations
        )

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights({**self._policy.components, **self._averaged})

    def state_dict(self) -> Mapping[str, Array]:
        state = {
            "num_updates": np.array(self._num_updates, np.int64),
            "log_alpha": self._log_alpha.detach().cpu().numpy().copy(),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
            **self._optimizers.state_dict(),
        }
        for name, module in self._stored_modules().items():
            state |= module_state(name, module)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with raise_checkpoint_errors(self.name):
            load_policy(self._policy, state)
            for name, module in self._stored_modules().items():
                load_module(name, module, state)
            self._optimizers.load_state_dict(state)
            with torch.no_grad():
                self._log_alpha.copy_(torch.tensor(state["log_alpha"]))
            load_generator(self._generator, state, seed=self._seed)
            self._num_updates = int(state["num_updates"])

    def _stored_modules(self) -> dict[str, nn.Module]:
        return {**self._modules, **{f"averaged/{name}": module for name, module in self._averaged.items()}}


class SACFamily(SoftActorCritic):
    """Adds what sac, rlpd and sac_flow support beyond the papers: images, a discrete gripper, CUDA graphs, cloning."""

    _config: SACFamilyConfig

    def __init__(
        self, config: SACFamilyConfig, *, policy: TrainablePolicy, target_entropy: float, seed: int
    ) -> None:
        # raises UsageError for a policy without a log-density
        policy.sample(torch.zeros(1, policy.num_features, device=device_of(policy)), generator=torch.Generator())
        self._family_config = config
        self._grasp: GraspCritic | None = None
        if isinstance(policy, HasDiscreteGripper) and policy.grasp is not None:
            self._grasp = GraspCritic(
                policy,
                penalty=config.gripper_switch_penalty,
                target_range=config.target_range,
                tau=config.tau,
            )
        learned_grasp = None if self._grasp is None or self._grasp.frozen else self._grasp
        super().__init__(
            config,
            policy=policy,
            actor={name: m for name, m in policy.components.items() if name not in ("encoder", "grasp")},
            target_entropy=target_entropy,
            seed=seed,
            encoder=policy.encoder if len(policy.encoder) else None,
            others={"grasp": learned_grasp.network} if learned_grasp else None,
            num_actions=_num_sampled(policy),
        )
        if learned_grasp is not None:
            self._modules["grasp_target"] = learned_grasp.target
            self._optimizers.add("grasp", list(learned_grasp.network.parameters()))
        self._shift = _num_shift_pixels(config, policy)
        self._graphs: CudaGraphs | None = None
        learns_images = self._target_encoder is not None
        if config.cuda_graphs and (self._device.type != "cuda" or learns_images or self._grasp is not None):
            raise UsageError(
                "algorithm.cuda_graphs needs a CUDA device and a policy without a learned image encoder or a discrete "
                "gripper. Set algorithm.cuda_graphs=false, or set device"
            )
        if config.torch_compile:
            if self._device.type != "cuda":
                raise UsageError(
                    "algorithm.torch_compile needs a CUDA device. Set algorithm.torch_compile=false, or set device"
                )
            for module in (self._critic, self._target, *policy.components.values()):
                module.compile()

    def set_parallel(self, parallel: DataParallel) -> None:
        if self._grasp is not None and not parallel.is_single:
            raise UsageError("policy.gripper=discrete learns in one process only. Set learner.ranks=1")
        if self._family_config.cuda_graphs and parallel.size > 1:
            raise UsageError(
                "algorithm.cuda_graphs works in one process only. Set algorithm.cuda_graphs=false or learner.ranks=1"
            )
        super().set_parallel(parallel)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self._graphs = None  # captured graphs may read replaced tensors

    def _run(self, update: Update, batch: Mapping[str, Tensor], **variant: bool) -> dict[str, float]:
        """Run `update(batch, **variant)`, as a CUDA graph if the config asks for it."""
        if not self._family_config.cuda_graphs:
            return to_floats(update(batch, **variant))
        self._graphs = self._graphs or CudaGraphs(self._generator)
        number = self._num_updates + 1
        tensors = {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict is not a dict
        metrics = self._graphs(update, tensors, **variant)
        self._num_updates = number  # a replay runs no Python
        if not all(map(math.isfinite, metrics.values())):
            names = ", ".join(name for name, value in metrics.items() if not math.isfinite(value))
            raise SkippedUpdate(f"{names} not finite")
        return metrics

    def _observations(self, batch: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
        """The batch's `observation` or `next` observations, with randomly shifted images (DrQ)."""
        observations = observations_of(batch, name)
        if not self._shift:
            return observations
        return {
            key: random_shift(values, pad=self._shift, generator=self._generator)
            if values.dtype in (torch.uint8, torch.uint16)  # color, depth
            else values
            for key, values in observations.items()
        }

    def _cloning_loss(self, batch: Mapping[str, Tensor], s: Tensor, a: Tensor, *, weight: float) -> Tensor | None:
        """`weight` times the policy's imitation loss, a mean over the steps that people took; None if there are none."""
        if not weight:
            return None
        policy, human, chunked = self._policy, batch["human"], self._horizon > 1
        first = human  # [B]: a person began the step or chunk
        if chunked:  # up to the episode's end, or to where the person handed back
            human = (human & batch["action/mask"]).cumprod(1).bool()
            first, a = human[:, 0], a.view(len(a), self._horizon, -1)
        mask = only_driven_axes(human & first[:, None] if chunked else human, batch)
        if self._family_config.cuda_graphs:  # masked, since the number of rows must not change
            return weight * policy.imitation_loss(s, a, mask, generator=self._generator)
        if self._parallel.is_single:
            if not human.any():
                return None
            rows = mask[first] if chunked or mask.ndim > 1 else None
            return weight * policy.imitation_loss(s[first], a[first], rows, generator=self._generator)
        # masked, so that all processes draw the same noise; weighted by counts, so that the mean of the processes'
        # gradients is that of one process
        count = mask.sum(dtype=torch.float32)
        total = count.clone()
        self._parallel.sum_([total])
        if not total:
            return None
        loss = policy.imitation_loss(s, a, mask, generator=self._generator)
        return weight * loss * count * self._parallel.size / total


def prior_and_online(num_rows: int, fraction: float) -> dict[View, int]:
    """Rows of a batch: `fraction` of prior data (demonstrations and interventions), the rest online steps."""
    num_prior = round(num_rows * fraction)
    return {View(part="prior"): num_prior, View(part="online"): num_rows - num_prior}


def num_action_dims(policy: TrainablePolicy) -> float:
    """Dimensions of an action or chunk; the average over the arms that share a policy."""
    if not isinstance(policy, CanonicalPolicy):
        return _num_sampled(policy)
    return policy.spec.horizon * float(policy.canonical_space.action_masks.sum(1).mean())


def _num_sampled(policy: TrainablePolicy) -> int:
    """Values that `policy.sample` draws per row: all but a discrete gripper."""
    discrete = isinstance(policy, HasDiscreteGripper) and policy.grasp is not None
    return policy.spec.horizon * (policy.spec.action.shape[0] - discrete)


def _num_shift_pixels(config: SACFamilyConfig, policy: TrainablePolicy) -> int:
    has_images = any(spec.is_picture for spec in policy.spec.observation.values())
    cached = isinstance(policy, CachesFeatures) and bool(policy.feature_specs)
    if config.random_shift and (cached or not has_images):
        reason = (
            "the replay stores features of a frozen encoder instead of images"
            if cached
            else f"policy '{policy.spec.name}' has no images among its inputs"
        )
        raise UsageError(
            f"algorithm.random_shift shifts images, but {reason}. Leave it out, or change policy.encoder or policy.inputs"
        )
    if config.random_shift is None:
        return 4 if has_images and not cached else 0
    return config.random_shift
