"""What soft actor-critics share (Haarnoja et al., 2018): critics with slow targets, a temperature, a checkpoint.

targets = self._targets(...)                        r + discount * least of the targets' values
metrics = self._fit_critic(features, actions, targets)
metrics |= self._climb(value, log_prob)             alpha * log pi - value, then the temperature
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.adam import Adam, clip_
from dovetail.learn.device import device_of
from dovetail.learn.finite import require_finite
from dovetail.learn.spread import Spread
from dovetail.learn.state import (
    load_generator,
    load_module,
    load_optimizer,
    load_policy,
    module_state,
    optimizer_state,
    policy_state,
    refuse_misfits,
)
from dovetail.policies.actor_critic import ValuedPolicy
from dovetail.policies.networks import EnsembleMLP, held_chunks
from dovetail.policies.parts import trained
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["SoftActorCritic", "SoftConfig", "prior_and_online"]


def prior_and_online(num_rows: int, fraction: float) -> dict[View, int]:
    """Part of every batch is prior data: demonstrations and interventions."""
    num_prior = round(num_rows * fraction)
    return {View(part="prior"): num_prior, View(part="online"): num_rows - num_prior}


class SoftConfig(Config):
    batch_size: int = Field(default=128, ge=2)
    num_steps: int = Field(default=1, ge=1)
    """Rewards added up before the critic's own estimate takes over: more carry a sparse reward back faster. A whole
    chunk at least."""
    credit_rescues: bool = True
    """Whether what a person earned after taking over counts for the policy's last steps before it, up to `num_steps`; if
    not, the critic says what would have come of them. Chunks are judged as a whole, whoever was at them."""
    gamma: float = Field(default=0.97, gt=0.0, lt=1.0)
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    lr: float = Field(default=3e-4, gt=0.0)
    num_critics: int = Field(default=2, ge=1)
    num_target_critics: int = Field(default=2, ge=1)
    """A random subset of this size gives the target's minimum."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    actor_every: int = Field(default=4, ge=1)
    """Critic updates per actor update."""
    actor_after: int = Field(default=0, ge=0)
    """Critic updates before the actor moves at all: a cloned actor waits until its critic knows it."""
    actor_q: Literal["mean", "min"] = "min"
    """What the actor climbs: the mean of the critics, or the least of them."""
    temperature: float = Field(default=0.02, gt=0.0)
    target_entropy: float | None = None
    """None: minus the number of action dimensions."""
    backup_entropy: bool = False
    target_range: tuple[float, float] | None = None
    """Returns that are possible at all, [0, 1] for a sparse reward: targets are clipped to it. None: no clipping."""
    actor_average: float = Field(default=0.995, ge=0.0, lt=1.0)
    """The robot gets a running average of the actor, this share of it old at each actor update: it sways less."""
    max_grad_norm: float = Field(default=10.0, gt=0.0)

    @model_validator(mode="after")
    def _enough_critics(self) -> Self:
        if self.num_target_critics > self.num_critics:
            raise ValueError(
                f"num_target_critics ({self.num_target_critics}) exceeds num_critics ({self.num_critics})"
            )
        return self


class SoftActorCritic:
    """All of an Algorithm but `update`. `actor` names the parts of the policy that learn, and `target_entropy` what holds
    where the config names none; `beside` are parts that learn by losses of their own, and `num_actions` is what a critic
    sees of an action, where that is not all. It sees whole chunks, where a policy gives those: any contiguous window of
    executed actions is one, whoever chose them.

    An `encoder` is trained by the critic's loss alone. The actor takes its features as they are: two losses that pull at
    one network would undo each other's work. What bootstraps looks through a slow copy of it.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: SoftConfig,
        *,
        policy: TrainablePolicy,
        actor: Mapping[str, nn.Module],
        target_entropy: float,
        seed: int,
        encoder: nn.ModuleDict | None = None,
        beside: Mapping[str, nn.Module] | None = None,
        num_actions: int | None = None,
    ) -> None:
        if isinstance(policy, ValuedPolicy):
            raise UsageError(
                f"policy '{policy.spec.name}' has a value of its own and is for ppo: choose gaussian_mlp or flow_actor for "
                f"algorithm '{self.name}'"
            )
        self._soft, self._policy = config, policy
        # what is frozen has no optimiser, and no average that could drift
        actor = trained(actor, algorithm=self.name)
        if encoder is not None and not any(p.requires_grad for p in encoder.parameters()):
            encoder = None  # frozen: it looks as it did, for actor, critic and target alike
        self._horizon = policy.spec.horizon
        num_actions = num_actions or self._horizon * policy.spec.action.shape[0]
        self._seed, self._device, self._spread = seed, device_of(policy), Spread()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = EnsembleMLP(
                (policy.num_features + num_actions, *config.hidden, 1), num_members=config.num_critics
            ).to(self._device)
        self._target = copy.deepcopy(self._critic).requires_grad_(False)
        self._modules: dict[str, nn.Module] = {"critic": self._critic, "target": self._target}
        self._critic_parameters: list[Tensor] = list(self._critic.parameters())
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._log_alpha = torch.tensor(float(np.log(config.temperature)), requires_grad=True, device=self._device)
        self._target_entropy = target_entropy if config.target_entropy is None else config.target_entropy
        # an actor knows the encoder it learned with, so both are averaged together, and what else the robot gets
        moving = {**actor, **(beside or {}), **({} if encoder is None else {"encoder": encoder})}
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in moving.items()}
        self._actor_parameters: list[Tensor] = [p for m in actor.values() for p in m.parameters()]
        self._moving_parameters: list[Tensor] = [p for m in moving.values() for p in m.parameters()]
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._optimizers = {
            "critic": Adam(self._critic_parameters, lr=config.lr),
            "actor": Adam(self._actor_parameters, lr=config.lr),
            "alpha": Adam([self._log_alpha], lr=config.lr),
        }
        self._target_encoder: nn.ModuleDict | None = None
        self._fitted = {"critic": self._critic_parameters}  # what the critic's loss trains
        if encoder is not None:
            self._target_encoder = copy.deepcopy(encoder).requires_grad_(False)
            self._modules["target_encoder"] = self._target_encoder
            self._fitted["encoder"] = list(encoder.parameters())
            self._target_parameters += list(self._target_encoder.parameters())
            self._optimizers["encoder"] = Adam(self._fitted["encoder"], lr=config.lr)
        self._fitted_parameters = [p for parameters in self._fitted.values() for p in parameters]
        self._grad_norms: dict[str, Tensor] = {}  # of each one's latest step, before clipping
        self._generator = self._spread.generator(self._device, seed)
        self._num_updates = 0

    @property
    def learns_from_running(self) -> bool:
        """What it learns of a step does not wait for how the episode ends; of a chunk it does: what was not done yet would
        pass for what is held past an end."""
        return self._horizon == 1

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """What computes, by name."""
        return {**self._policy.components, **self._modules}

    def spread(self, spread: Spread) -> None:
        """Take each step together with other processes; before the first update."""
        if spread.num_pieces > 1:
            raise UsageError(
                f"algorithm '{self.name}' takes its batch in one piece: set learner.accumulate=1 and a smaller "
                "algorithm.batch_size"
            )
        self._spread = spread
        self._generator = spread.generator(self._device, self._seed)

    @property
    def wants(self) -> SampleRequest:
        """Rewards are added up over as many steps as a chunk has, or more: discounted by their place, and the value of
        what follows by how many there were."""
        spec = self._policy.spec
        return SampleRequest(
            observation_keys=tuple(spec.observation),
            rows=self._rows(),
            window=Window(
                gamma=self._soft.gamma,
                num_steps=max(self._soft.num_steps, self._horizon),
                # a chunk is judged as a whole, whoever was at it
                until_taken_over=not self._soft.credit_rescues and self._horizon == 1,
                horizon=self._horizon,
                history=spec.history,
            ),
            prompts=spec.prompted,
            when_empty=View(),  # before the first online step, or without demonstrations, one side has nothing
        )

    def _rows(self) -> Mapping[View, int]:
        """All there is, drawn alike."""
        return {View(): self._soft.batch_size}

    def _executed(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Actions, normalised: [B, A], or chunks [B, H * A]. Past an episode's end the last action is held: what comes
        there earns nothing any more."""
        actions = self._policy.normalize_actions(batch["action"])
        if self._horizon > 1:
            actions = held_chunks(actions, batch["action/mask"]).flatten(1)
        return actions

    def _actor_is_due(self) -> bool:
        """Counts an update of the critic, and says whether one of the actor follows it."""
        self._num_updates += 1
        return self._num_updates > self._soft.actor_after and self._num_updates % self._soft.actor_every == 0

    # ---- the critic

    def _targets(
        self,
        rewards: Tensor,
        discounts: Tensor,
        next_features: Tensor,
        next_actions: Tensor,
        next_log_prob: Tensor,
    ) -> Tensor:
        config = self._soft
        with torch.no_grad():
            subset = None
            if config.num_target_critics < config.num_critics:
                subset = self._some_critics()
            next_value = self._target(torch.cat((next_features, next_actions), 1), subset).amin(0)
            if config.backup_entropy:
                next_value = next_value - self._log_alpha.exp() * next_log_prob
            targets: Tensor = rewards + discounts * next_value
            return targets if config.target_range is None else targets.clamp(*config.target_range)

    def _some_critics(self) -> Tensor:
        config, generator = self._soft, self._generator
        if generator.device.type == "cuda":  # without asking it, which randperm does
            order = torch.rand(config.num_critics, generator=generator, device=generator.device).argsort()
        else:
            order = torch.randperm(config.num_critics, generator=generator, device=generator.device)
        return order[: config.num_target_critics]

    def _fit_critic(self, features: Tensor, actions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        q, loss = self._critic.errors(torch.cat((features, actions), 1), targets)  # [E, B]
        self._step(loss, self._fitted)
        with torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, self._fitted_parameters, self._soft.tau)
        return {"critic_loss": loss.detach() / self._soft.num_critics, "q": q.mean()}

    # ---- the actor

    def _judged(self, critic: nn.Module, features: Tensor, actions: Tensor) -> Tensor:
        """What the actor climbs, [B]: gradients go through the critic to the actions, and none is computed for itself."""
        critic.requires_grad_(False)
        value = self._value(critic(torch.cat((features, actions), 1)))
        critic.requires_grad_(True)
        return value

    def _value(self, q: Tensor) -> Tensor:
        """What the actor climbs, [B], of what the critics say, [E, B]."""
        return q.mean(0) if self._soft.actor_q == "mean" else q.amin(0)

    def _climb(
        self, value: Tensor, log_prob: Tensor, *, extra_loss: Tensor | None = None
    ) -> dict[str, Tensor | float]:
        alpha = self._log_alpha.exp().detach()
        loss = (alpha * log_prob - value).mean()
        if extra_loss is not None:
            loss = loss + extra_loss
        metrics = self._follow(loss)
        entropy = -log_prob.detach().mean()
        slope = alpha * (entropy - self._target_entropy)  # of exp(log_alpha) * (entropy - target), by log_alpha
        self._descend(slope, {"alpha": [self._log_alpha]}, [slope])
        return {**metrics, "entropy": entropy, "target_entropy": self._target_entropy, "alpha": alpha}

    def _follow(self, loss: Tensor) -> dict[str, Tensor]:
        """One step of the actor down a loss, and its running average after it."""
        self._step(loss, {"actor": self._actor_parameters})
        with torch.no_grad():
            torch._foreach_lerp_(
                self._averaged_parameters, self._moving_parameters, 1.0 - self._soft.actor_average
            )
        return {"actor_loss": loss.detach()}

    def _step(self, loss: Tensor, groups: Mapping[str, Sequence[Tensor]]) -> None:
        """Down one loss, each group of parameters clipped by itself and with an optimiser of its own."""
        # gradients of exactly these parameters: the actor's loss flows through the critic without touching it
        # and cloning, for one, says nothing of a flow's noise
        wanted = [p for group in groups.values() for p in group]
        self._descend(loss, groups, torch.autograd.grad(loss, wanted, allow_unused=True))

    def _descend(
        self, loss: Tensor, groups: Mapping[str, Sequence[Tensor]], gradients: Sequence[Tensor | None]
    ) -> None:
        loss = loss.detach()
        if not self._spread.alone:  # the mean of all processes' gradients, before any of it is clipped
            loss = loss.clone()
            gradients = tuple(None if gradient is None else gradient.clone() for gradient in gradients)
            together = [*(gradient for gradient in gradients if gradient is not None), loss]
            self._spread.add_up(together)
            torch._foreach_div_(together, self._spread.size)
        captured = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        bad: Tensor | None = None
        coming = iter(gradients)
        mine: dict[str, list[Tensor | None]] = {}
        for name, parameters in groups.items():
            mine[name] = [next(coming) for _ in parameters]
            for parameter, gradient in zip(parameters, mine[name], strict=True):
                parameter.grad = gradient
            self._grad_norms[name] = norm = clip_(
                [gradient for gradient in mine[name] if gradient is not None], self._soft.max_grad_norm
            )
            if captured:  # a graph cannot stop: such a step does nothing
                bad = (loss + norm).isfinite().logical_not().float()
            else:
                require_finite(name, loss, norm)
        for name in groups:
            self._optimizers[name].descend(mine[name], bad=bad)

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights({**self._policy.components, **self._averaged})

    # ---- everything a resumed run needs to go on exactly where this one stopped

    def state_dict(self) -> Mapping[str, Array]:
        state = {
            "num_updates": np.array(self._num_updates, np.int64),
            "log_alpha": self._log_alpha.detach().cpu().numpy().copy(),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
        }
        for name, module in self._kept().items():
            state |= module_state(name, module)
        for name, optimizer in self._optimizers.items():
            state |= optimizer_state(name, optimizer)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits(self.name):
            load_policy(self._policy, state)
            for name, module in self._kept().items():
                load_module(name, module, state)
            for name, optimizer in self._optimizers.items():
                load_optimizer(name, optimizer, state)
            with torch.no_grad():
                self._log_alpha.copy_(torch.tensor(state["log_alpha"]))
            load_generator(self._generator, state, seed=self._seed)
            self._num_updates = int(state["num_updates"])

    def _kept(self) -> dict[str, nn.Module]:
        return {**self._modules, **{f"averaged/{name}": module for name, module in self._averaged.items()}}
