"""A frozen base policy and a small actor that corrects it within limits.

    a = clip(a_base + lambda * tanh(f(o, a_base))),   lambda = share * max_correction * range of the axis

The base may be served elsewhere: its proposal is part of the observation (`dovetail.core.proposals`), so learning needs no
weights of it. The algorithm raises `share` from 0 to 1. The last layer of f starts at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from dovetail.core.contracts import Policy
from dovetail.core.errors import SpecMismatch, UsageError, did_you_mean
from dovetail.core.proposals import PROPOSAL, without_proposal
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.base_proposals import BaseProposals
from dovetail.policies.inputs import zero_inputs
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.settings import ResidualConfig
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian, unclamped_log_std

__all__ = ["ResidualActor", "ResidualConfig", "ResidualPolicy"]


class ResidualActor(nn.Module):
    """Mean and log standard deviation of the corrections before tanh, [B, F] -> [B, K * A] each."""

    share: Tensor

    def __init__(
        self, *, num_features: int, num_outputs: int, hidden: tuple[int, ...], initial_std: float
    ) -> None:
        super().__init__()
        self.net = mlp((num_features, *hidden, 2 * num_outputs))
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        nn.init.constant_(last.bias[num_outputs:], unclamped_log_std(initial_std))
        self.register_buffer("share", torch.zeros(1))  # of the limit; a buffer, so that it is part of the weights

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self.net(features))


class ResidualPolicy(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts. The features end with the normalized proposal, [B, K * A]."""

    Config: ClassVar[type[ResidualConfig]] = ResidualConfig

    def __init__(
        self, config: ResidualConfig, *, robot: RobotSpec, seed: int = 0, base: Policy | None = None
    ) -> None:
        if base is None:
            raise UsageError("policy 'residual' needs its base policy. Build it from the config of a run")
        arm = without_proposal(robot)
        self._base = BaseProposals(base, owner="residual", horizon=config.horizon, every=config.base_every)
        seen = policy_spec("residual", arm, inputs=config.inputs, history={}, images=True, horizon=config.horizon)
        super().__init__(seen, config.components, encoder=config.encoder)
        self._base_source = config.base
        self._whole_spec = self._with_base(seen)
        limits = np.array([config.max_correction_of.get(n, config.max_correction) for n in _axes(arm, config)])
        low, high = arm.action.bounds
        self._max_correction = (limits * (high - low)).astype(np.float32)  # [A], in the robot's units
        self._shape = (config.horizon, len(limits))
        num_outputs = config.horizon * len(limits)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._make_image_encoders()
            self.residual = ResidualActor(
                num_features=self.num_features,
                num_outputs=num_outputs,
                hidden=config.hidden,
                initial_std=config.initial_std,
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
            guidable=base.guidable,
            prompted=base.prompted,
            base=self._base.spec(learned=learned),
        )

    @property
    def spec(self) -> PolicySpec:
        return self._whole_spec

    @property
    def base(self) -> Policy:
        return self._base.policy

    @property
    def base_source(self) -> Mapping[str, Any]:
        return self._base_source

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"residual": self.residual} | ({"encoder": self._encoder} if len(self._encoder) else {})

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        proposed, chunk = self._base.propose(observations, context)  # [B, K, A], [B, Hb, A]
        with torch.no_grad():
            known = {**observations, PROPOSAL: proposed.reshape(len(proposed), -1)}
            features = self.features(self._tensors({key: known[key] for key in self.spec.learned_keys}))
            raw, log_std = self.residual(features)
            if not context.deterministic:
                generator = seeded_generator(context.seed, role="correction")
                raw = raw + log_std.exp() * normal(raw.shape, generator=generator, device=raw.device)
            correction = torch.tanh(raw).view(-1, *self._shape).cpu().numpy()
        # in the robot's units, so that no correction leaves the base's action as it is, to the last bit
        actions = proposed + self._max_correction * float(self.residual.share) * correction
        return ActionChunk(
            actions=np.clip(actions, *self.spec.action.bounds).astype(np.float32),
            observed_ns=0,
            policy_version=self._version,
            extras={PROPOSAL: chunk},
        )

    def warmup(self) -> None:
        self._base.policy.warmup()
        inputs = zero_inputs(self.spec)
        chunk = self.act(inputs, ActContext(deterministic=True))
        if self.spec.guidable:
            inputs[PROPOSAL] = np.full_like(inputs[PROPOSAL], np.nan)
            self.act(inputs, ActContext(deterministic=True, prefix=chunk.actions, delay=1))

    def reset(self) -> None:
        self._base.policy.reset()

    def close(self) -> None:
        self._base.close()

    # ---- TrainablePolicy: torch

    @property
    def num_features(self) -> int:
        return super().num_features + self._whole_spec.observation[PROPOSAL].shape[0]

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        proposal = observations[PROPOSAL]
        proposed = self.normalize_actions(proposal.view(len(proposal), *self._shape)).flatten(1)
        return torch.cat((super().features(observations, encoder=encoder), proposed), 1)

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Total actions, and the log-density of the corrections in units of their limits."""
        chosen, log_prob = sample_tanh_gaussian(*self.residual(features), generator=generator)
        return self._total(features, chosen).clamp(-1.0, 1.0), log_prob

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        mean, _ = self.residual(features)
        total = self._total(features, torch.tanh(mean)).view(-1, *self._shape)
        return masked_mse(total, actions.reshape_as(total), mask, None)

    def _total(self, features: Tensor, correction: Tensor) -> Tensor:
        """Normalized actions [B, K * A] before they are clipped."""
        proposed = features[:, -correction.shape[1] :]
        limits = torch.as_tensor(self._max_correction / self._scale, device=features.device)
        return proposed + self.residual.share * limits.repeat(self._shape[0]) * correction


def _axes(robot: RobotSpec, config: ResidualConfig) -> tuple[str, ...]:
    names = robot.action.names or tuple(str(number) for number in range(robot.action.shape[0]))
    for name in config.max_correction_of:
        if name not in names:
            raise SpecMismatch(
                f"policy.max_correction_of names axis '{name}', which robot '{robot.name}' does not have."
                + did_you_mean(name, names)
            )
    return names
