"""DSRL: steer a frozen flow by choosing the noise that it starts from (Wagenmaker et al., 2025).

Three networks learn, each from the one before it:

    Q(s, a)     critic of executed chunks:   y = sum_i gamma^i r_i + gamma^H min_j Q'_j(s', flow(s', w')),  w' ~ pi(s')
    Q_w(s, w)   critic of noise, distilled:  y = Q(s, flow(s, w)) for any w. One action teaches about every noise that leads
                to it, and so do actions of people, whose noise is unknown
    pi(w | s)   actor:                       minimizes alpha log pi(w | s) - Q_w(s, w)

No gradient flows through the flow. Updates call it: with a vision-language-action model, they need its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest
from dovetail.learn.algorithms._soft_actor_critic import SoftActorCritic, prior_and_online
from dovetail.learn.algorithms.settings import DSRLConfig
from dovetail.learn.batches import observations_of
from dovetail.learn.cuda_graphs import to_floats
from dovetail.policies.random_draws import normal
from dovetail.policies.steering import SteeringActor
from dovetail.policies.trainable import Steerable, TrainablePolicy

__all__ = ["DSRL", "DSRLConfig"]


class DSRL(SoftActorCritic):
    """See the Algorithm contract. Clone the flow first; the actor must execute whole chunks."""

    Config: ClassVar[type[DSRLConfig]] = DSRLConfig
    name: ClassVar[str] = "dsrl"
    _config: DSRLConfig

    def __init__(self, config: DSRLConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, Steerable) or policy.steering is None:
            raise UsageError(
                f"algorithm 'dsrl' needs a policy with a steering actor, and '{policy.spec.name}' has none. Set "
                "policy.type=steered, or policy.steering={} for pi0, pi05, smolvla and diffusion"
            )
        self._flow, self._steering = policy, policy.steering
        super().__init__(
            config,
            policy=policy,
            actor={"steering": self._steering},
            target_entropy=-0.5 * policy.num_noise,
            seed=seed,
        )
        self._noise_critic = self._make_critic(policy.num_noise, seed=seed + 1)
        self._modules["noise_critic"] = self._noise_critic
        self._optimizers.add("noise_critic", list(self._noise_critic.parameters()))

    @property
    def sample_request(self) -> SampleRequest:
        return self._sample_request(prior_and_online(self._config.batch_size, self._config.prior_fraction))

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        with torch.no_grad():  # the flow and its encoders are frozen
            (s, inputs), (s_next, inputs_next) = (self._inputs(batch, side) for side in ("observation", "next"))
            if self._steering.needs_fit:
                self._fit(torch.cat((s, s_next)))
            s, s_next = self._steering.standardize(s), self._steering.standardize(s_next)
        update_actor = self._actor_is_due()
        metrics: dict[str, Tensor | float] = {}
        metrics |= self._update_critic(
            s, self._executed_actions(batch), batch["reward"], batch["discount"], s_next, inputs_next
        )
        metrics |= self._update_noise_critic(s, inputs)
        if update_actor:
            metrics |= self._update_actor(s)
        return to_floats(metrics)

    def _update_critic(
        self, s: Tensor, a: Tensor, r: Tensor, discount: Tensor, s_next: Tensor, inputs_next: Any
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            w_next, log_pi_next = self._steering.sample(s_next, generator=self._generator)
            a_next = self._flow.chunks_from_noise(inputs_next, w_next).flatten(1)
            q_next = self._min_target_q(s_next, a_next)
            if self._config.backup_entropy:
                q_next = q_next - self._log_alpha.exp() * log_pi_next
            y = self._clip_target(r + discount * q_next)
        return self._step_critic(s, a, y)

    def _update_noise_critic(self, s: Tensor, inputs: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            w, _ = self._steering.sample(s, generator=self._generator)
            # every second row has the flow's own noise N(0, I), so that Q_w stays right where the actor no longer goes
            prior_w = normal(w.shape, generator=self._generator, device=w.device)
            row = self._parallel.size * torch.arange(len(w), device=w.device) + self._parallel.rank
            w = torch.where((row % 2 == 0)[:, None], prior_w, w)
            a = self._flow.chunks_from_noise(inputs, w).flatten(1)
            y = self._combine(self._critic(torch.cat((s, a), 1)))
        _, loss = self._noise_critic.errors(torch.cat((s, w), 1), y)
        self._optimizers.step(loss, "noise_critic")
        return {"noise_critic_loss": loss.detach() / self._config.num_critics}

    def _update_actor(self, s: Tensor) -> dict[str, Tensor | float]:
        for steering in (self._steering, self._averaged["steering"]):
            steering.get_buffer("engaged").fill_(1.0)  # until now, the policy drew the flow's own noise
        alpha = self._log_alpha.exp().detach()
        w, log_pi = self._steering.sample(s, generator=self._generator)
        loss = (alpha * log_pi - self._actor_q(self._noise_critic, s, w)).mean()
        return {**self._step_actor(loss), **self._step_temperature(alpha, log_pi)}

    def _fit(self, s: Tensor) -> None:
        """Standardize features from now on by the statistics of the first batch, of all processes."""
        count = torch.full_like(s[0], float(len(s)))
        sums = [count, s.sum(0), s.square().sum(0)]
        if not self._parallel.is_single:
            self._parallel.sum_(sums)
        count, total, squares = sums
        mean = total / count
        for steering in (self._steering, self._averaged["steering"]):
            assert isinstance(steering, SteeringActor)
            steering.fit(mean, (squares / count - mean.square()).clamp(min=0.0).sqrt())

    def _inputs(self, batch: Mapping[str, Tensor], name: str) -> tuple[Tensor, Any]:
        observations = observations_of(batch, name)
        if self._policy.spec.prompted:
            observations["prompt"] = batch["prompt"]
        return self._flow.steering_inputs(observations)
