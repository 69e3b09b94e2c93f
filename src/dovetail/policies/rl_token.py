"""A frozen base policy, a token that sums up what it knows, and a small actor that starts from its proposal (RLT).

    z     = token(embeddings of the base)                      one vector, trained on demonstrations, then frozen
    chunk = tanh(actor(z, proprioception, proposed chunk))     trained online

The base may be any policy with embeddings: a VLA, or a flow. Its embeddings and its proposal are part of the observation
(`dovetail.core.proposals`), so the replay has them and learning never calls the base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from dovetail.core.contracts import Policy
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.proposals import EMBEDDING, OF_BASE, PROPOSAL, without_proposal
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.base_proposals import BaseProposals
from dovetail.policies.inputs import zero_inputs
from dovetail.policies.networks import masked_mse
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.rl_token_networks import ChunkActor, RlToken, pool_embeddings
from dovetail.policies.settings import RlTokenConfig
from dovetail.policies.trainable import HasEmbeddings

__all__ = ["RlTokenConfig", "RlTokenPolicy"]


class RlTokenPolicy(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts. The features are the token z, the proprioception and the normalized
    proposal [B, K * A], in this order."""

    Config: ClassVar[type[RlTokenConfig]] = RlTokenConfig

    def __init__(
        self, config: RlTokenConfig, *, robot: RobotSpec, seed: int = 0, base: Policy | None = None
    ) -> None:
        if base is None:
            raise UsageError("policy 'rl_token' needs its base policy. Build it from the config of a run")
        arm = without_proposal(robot)
        self._config = config
        self._base = BaseProposals(base, owner="rl_token", horizon=config.horizon, every=config.base_every)
        self._embedding_source = _with_embeddings(base, config)
        inputs = tuple(key for key in config.inputs if key not in OF_BASE)
        seen = policy_spec("rl_token", arm, inputs=inputs, history={}, images=False, horizon=config.horizon)
        self._proprioception = tuple(seen.observation)
        embedding = ArraySpec(shape=(config.embedding_size,))
        seen = replace(seen, observation={**seen.observation, EMBEDDING: embedding})
        super().__init__(seen, config.components)
        self._whole_spec = self._with_base(seen)
        self._shape = (config.horizon, seen.action.shape[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.token = RlToken(
                num_embeddings=config.num_embeddings,
                embedding_width=config.embedding_width,
                size=config.token_size,
                width=config.token_width,
                num_layers=config.token_layers,
                decoder_hidden=config.decoder_hidden,
            )
            self.actor = ChunkActor(
                num_features=self.num_features, num_outputs=math.prod(self._shape), hidden=config.hidden
            )

    def _with_base(self, seen: PolicySpec) -> PolicySpec:
        base, num_values = self._base.policy.spec, seen.horizon * seen.action.shape[0]
        if base.action.shape != seen.action.shape:
            raise SpecMismatch(
                f"base policy '{base.name}' has {base.action.shape[0]} action axes, but the robot has "
                f"{seen.action.shape[0]}. Choose a base for this robot"
            )
        learned = (*seen.observation, PROPOSAL)
        return replace(
            seen,
            observation={**base.observation, **seen.observation, PROPOSAL: ArraySpec(shape=(num_values,))},
            guidable=False,  # the actor continues no chunk
            prompted=base.prompted,
            base=replace(self._base.spec(learned=learned), embedding_size=self._config.embedding_size),
        )

    @property
    def spec(self) -> PolicySpec:
        return self._whole_spec

    @property
    def base(self) -> Policy:
        return self._base.policy

    @property
    def base_source(self) -> Mapping[str, Any]:
        return self._config.base

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"token": self.token, "actor": self.actor}

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        proposed, chunk = self._base.propose(observations, context)  # [B, K, A], [B, Hb, A]
        embedding = observations[EMBEDDING]
        is_asked = np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1, keepdims=True)  # [B, 1]
        if is_asked.any():
            embedding = np.where(is_asked, self._embed(observations), embedding)
        known = {**observations, EMBEDDING: embedding, PROPOSAL: proposed.reshape(len(proposed), -1)}
        actions = proposed
        if self.actor.engaged:
            with torch.no_grad():
                features = self.features(self._tensors({key: known[key] for key in self.spec.learned_keys}))
                generator = None if context.deterministic else seeded_generator(context.seed, role="exploration")
                mean = self.actor(features)
                chosen = mean if context.deterministic else self._explore(mean, generator)
            actions = self._chunk(chosen.view(-1, *self._shape)).actions
        return ActionChunk(
            actions=np.clip(actions, *self.spec.action.bounds).astype(np.float32),
            observed_ns=0,
            policy_version=self._version,
            extras={PROPOSAL: chunk, EMBEDDING: np.asarray(embedding, np.float32)},
        )

    def _embed(self, observations: Mapping[str, Array]) -> Array:
        """The base's embeddings as the replay stores them, [B, M * W]."""
        with torch.no_grad():
            found, mask = self._embedding_source.embeddings(self._base.inputs(observations))
            pooled = pool_embeddings(found, mask, num_groups=self._config.num_embeddings)
        return pooled.flatten(1).cpu().numpy()

    def _explore(self, mean: Tensor, generator: Generator | None) -> Tensor:
        noise = normal(mean.shape, generator=generator, device=mean.device)
        return (mean + self._config.exploration_std * noise).clamp(-1.0, 1.0)

    def warmup(self) -> None:
        self._base.policy.warmup()
        inputs = zero_inputs(self.spec)
        with torch.no_grad():
            self.features(self._tensors({key: inputs[key] for key in self.spec.learned_keys}))

    def reset(self) -> None:
        self._base.policy.reset()

    def close(self) -> None:
        self._base.close()

    # ---- TrainablePolicy: torch

    @property
    def num_state_features(self) -> int:
        """Features of token and proprioception, which the critic reads."""
        return self._config.token_size + sum(
            self._whole_spec.observation[key].shape[0] for key in self._proprioception
        )

    @property
    def num_features(self) -> int:
        return self.num_state_features + self._whole_spec.observation[PROPOSAL].shape[0]

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        with torch.no_grad():  # the algorithm trains the token by its own loss
            z = self.token(self.embeddings(observations))
        proprioception = [self._normalizer(key, observations[key]) for key in self._proprioception]
        proposal = observations[PROPOSAL]
        proposed = self.normalize_actions(proposal.view(len(proposal), *self._shape)).flatten(1)
        return torch.cat((z, *proprioception, proposed), 1)

    def embeddings(self, observations: Mapping[str, Tensor]) -> Tensor:
        """The base's normalized embeddings [B, M, W]."""
        config = self._config
        values = self._normalizer(EMBEDDING, observations[EMBEDDING])
        return values.view(-1, config.num_embeddings, config.embedding_width)

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        mean, std = self.actor(features), self._config.exploration_std
        noise = normal(mean.shape, generator=generator, device=mean.device)
        log_prob = -0.5 * (noise.square() + math.log(2.0 * math.pi * std * std)).sum(1)
        return (mean + std * noise).clamp(-1.0, 1.0), log_prob

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        chunks: Tensor = self.actor(features).view(-1, *self._shape)
        return masked_mse(chunks, actions.reshape_as(chunks), mask, None)


def _with_embeddings(base: Policy, config: RlTokenConfig) -> HasEmbeddings:
    if not isinstance(base, HasEmbeddings):
        raise SpecMismatch(
            f"policy 'rl_token' reads the embeddings of its base, and '{base.spec.name}' has none. Use pi0, pi05, smolvla "
            "or flow as the base"
        )
    if base.embedding_width != config.embedding_width:
        raise SpecMismatch(
            f"the embeddings of base policy '{base.spec.name}' have width {base.embedding_width}, not "
            f"{config.embedding_width}. Set policy.embedding_width={base.embedding_width}"
        )
    return base
