"""RLT: a small actor and critic of chunks, on a token of a frozen vision-language-action model (RL token, 2026).

First, on demonstrations, with e the frozen model's embeddings:

    z(e)    token:   minimizes |decoder(z) - e|^2, then it is frozen

Then online. x = (z, proprioception), c a chunk of K actions, c_base the frozen model's proposal:

    Q(x, c)          critic:  y = sum_{i<n} gamma^i r_i + gamma^n min_j Q'_j(x', c'),   c' ~ pi(x', c_base'),  n >= K
    pi(x, c_base)    actor:   minimizes -Q(x, c) + beta |c - c_base|^2; c_base is 0 among its inputs in half of the rows

Where a person acted, the person's chunk replaces c_base in the distance, with a weight of its own. The replay holds chunks
of the base, of the actor and of people, with e and c_base of each step: no update calls the frozen model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest, View
from dovetail.learn.algorithms._soft_actor_critic import SoftActorCritic, prior_and_online
from dovetail.learn.algorithms.settings import RLTConfig
from dovetail.learn.batches import observations_of, only_driven_axes
from dovetail.learn.cuda_graphs import to_floats
from dovetail.policies.networks import EnsembleMLP
from dovetail.policies.random_draws import uniform
from dovetail.policies.rl_token import RlTokenPolicy
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLT", "RLTConfig"]


class RLT(SoftActorCritic):
    """See the Algorithm contract. The actor must execute whole chunks of the policy."""

    Config: ClassVar[type[RLTConfig]] = RLTConfig
    name: ClassVar[str] = "rlt"
    _config: RLTConfig

    def __init__(self, config: RLTConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, RlTokenPolicy):
            raise UsageError(
                f"algorithm 'rlt' trains policy 'rl_token', not '{policy.spec.name}'. Set policy.type=rl_token"
            )
        self._of_token = policy
        super().__init__(config, policy=policy, actor={"actor": policy.actor}, seed=seed)
        self._optimizers.add("token", list(policy.token.parameters()))

    def _make_critic(self, num_actions: int, *, seed: int) -> EnsembleMLP:
        """The critic does not see the proposal."""
        config = self._config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = (self._of_token.num_state_features + num_actions, *config.hidden, 1)
            return EnsembleMLP(sizes, num_members=config.num_critics).to(self._device)

    @property
    def sample_request(self) -> SampleRequest:
        config = self._config
        if self._num_updates < config.token_updates:
            return self._sample_request({View(part="prior"): config.batch_size})
        return self._sample_request(prior_and_online(config.batch_size, config.prior_fraction))

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        if self._num_updates < self._config.token_updates:
            return to_floats(self._update_token(batch))
        with torch.no_grad():  # the token is frozen
            s, s_next = (self._of_token.features(observations_of(batch, name)) for name in ("observation", "next"))
        update_actor = self._actor_is_due()
        metrics: dict[str, Tensor | float] = {}
        metrics |= self._update_critic(
            s, self._executed_actions(batch), batch["reward"], batch["discount"], s_next
        )
        if update_actor:
            metrics |= self._update_actor(s, *self._wanted_chunks(batch, s))  # [B, K, A] each
        return to_floats(metrics)

    def _update_token(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor | float]:
        policy = self._of_token
        loss = policy.token.loss(policy.embeddings(observations_of(batch, "observation")))
        self._optimizers.step(loss, "token")
        self._num_updates += 1
        return {"token_loss": loss.detach()}

    def _update_critic(
        self, s: Tensor, c: Tensor, r: Tensor, discount: Tensor, s_next: Tensor
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            c_next, _ = self._of_token.sample(s_next, generator=self._generator)
            y = self._clip_target(r + discount * self._min_target_q(self._state(s_next), c_next))
        return self._step_critic(self._state(s), c, y)

    def _update_actor(self, s: Tensor, wanted: Tensor, weights: Tensor) -> dict[str, Tensor | float]:
        config, policy = self._config, self._of_token
        dropped = uniform((len(s), 1), generator=self._generator, device=s.device) < config.dropped_share
        x, c_base = self._state(s), s[:, policy.num_state_features :]
        c = policy.actor(torch.cat((x, torch.where(dropped, 0.0, c_base)), 1))
        distance = (weights * (c.view_as(wanted) - wanted).square()).mean()
        if self._num_updates <= config.token_updates + config.base_updates:  # the critic knows too little
            return {**self._step_actor(distance), "distance": distance.detach()}
        for actor in (policy.actor, self._averaged["actor"]):
            actor.get_buffer("engaged").fill_(1.0)  # until now, the base acted alone
        loss = -self._actor_q(self._critic, x, c).mean() + config.beta * distance
        return {**self._step_actor(loss), "distance": distance.detach()}

    def _wanted_chunks(self, batch: Mapping[str, Tensor], s: Tensor) -> tuple[Tensor, Tensor]:
        """Chunks [B, K, A] to which the actor keeps a small distance, and the weights of their values: what a person did, up
        to the handover or the episode's end, or else the proposal."""
        executed = self._policy.normalize_actions(batch["action"], observations_of(batch, "observation"))
        proposed = s[:, self._of_token.num_state_features :].view_as(executed)
        human = batch["human"] & batch["action/mask"]
        began = human[:, :1]  # a person began the chunk
        known = only_driven_axes(torch.where(began, human, torch.ones_like(human)), batch)  # [B, K] or [B, K, A]
        known = known.view(*executed.shape[:2], -1).expand_as(executed)
        wanted = torch.where(known, torch.where(began[..., None], executed, proposed), 0.0)
        return wanted, torch.where(began[..., None], self._config.correction_weight, 1.0) * known

    def _state(self, s: Tensor) -> Tensor:
        """Token and proprioception."""
        return s[:, : self._of_token.num_state_features]
