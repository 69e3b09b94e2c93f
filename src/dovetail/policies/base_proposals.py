"""A frozen base policy that proposes chunks to the policy around it: see `dovetail.core.proposals`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail.core.abilities import Closes
from dovetail.core.contracts import Policy
from dovetail.core.errors import SpecMismatch
from dovetail.core.proposals import OF_BASE, PROPOSAL, proposal_at
from dovetail.core.specs import BaseSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot

__all__ = ["BaseProposals", "WithoutProposals"]


class BaseProposals:
    """The base of a policy whose chunks have `horizon` actions. It has no state: the planner keeps the base's chunk.

    base = BaseProposals(policy, owner="residual", horizon=1, every=8)
    proposed, chunk = base.propose(observations, context)      # [B, horizon, A] and [B, Hb, A]
    return ActionChunk(..., extras={PROPOSAL: chunk})          # the planner keeps it for the next ticks
    """

    def __init__(self, policy: Policy, *, owner: str, horizon: int, every: int | None) -> None:
        if policy.spec.history:
            raise SpecMismatch(
                f"policy '{owner}' cannot use '{policy.spec.name}' as its base, because that needs the history of "
                f"{', '.join(policy.spec.history)}. Choose a base that sees the current observation only"
            )
        if policy.spec.horizon < horizon:
            raise SpecMismatch(
                f"policy '{owner}' has chunks of {horizon} actions, but its base '{policy.spec.name}' proposes "
                f"{policy.spec.horizon}. Set policy.horizon={policy.spec.horizon} or less"
            )
        self.policy, self._horizon = policy, horizon
        self._every = every or (max(1, policy.spec.horizon // 2) if horizon == 1 else 1)

    def spec(self, *, learned: tuple[str, ...]) -> BaseSpec:
        """The base's part of the policy's spec. `learned` are the observations that the policy itself reads."""
        only_base = tuple(key for key in self.policy.spec.observation if key not in learned)
        return BaseSpec(horizon=self.policy.spec.horizon, every=self._every, inputs=only_base)

    def propose(self, observations: Mapping[str, Array], context: ActContext) -> tuple[Array, Array]:
        """The proposal [B, K, A] that the planner knows, or that of a new chunk; and the new chunk [B, Hb, A], NaN where the
        proposal was known."""
        spec = self.policy.spec
        known = observations[PROPOSAL].reshape(-1, self._horizon, *spec.action.shape)
        is_known = np.isfinite(known).all(axis=(1, 2), keepdims=True)
        if is_known.all():
            return known, np.full((len(known), spec.horizon, *spec.action.shape), np.nan, np.float32)
        chunk = self.policy.act(self.inputs(observations), self._context(context)).actions
        fresh = np.stack([proposal_at(one, 0, steps=self._horizon) for one in chunk])
        return np.where(is_known, known, fresh), np.where(is_known, np.float32(np.nan), chunk)

    def close(self) -> None:
        if isinstance(self.policy, Closes):
            self.policy.close()

    def inputs(self, observations: Mapping[str, Array]) -> dict[str, Array]:
        """Those that the base reads."""
        keys = (*self.policy.spec.observation, *(("prompt",) if self.policy.spec.prompted else ()))
        return {key: observations[key] for key in keys}

    def _context(self, context: ActContext) -> ActContext:
        """The same request for the base's longer chunk: committed actions are followed by unknown ones."""
        prefix = context.prefix
        if prefix is not None:
            missing = self.policy.spec.horizon - prefix.shape[1]
            prefix = np.pad(prefix, ((0, 0), (0, missing), (0, 0)), constant_values=np.nan)
        return ActContext(
            deterministic=context.deterministic,
            seed=context.seed,
            prefix=prefix,
            delay=context.delay,
            horizon=context.horizon,
        )


class WithoutProposals:
    """A policy with a base, for callers that keep no proposals, such as the clients of a server. The base proposes again for
    each chunk, whatever `policy.base_every` says. See the Policy contract."""

    def __init__(self, policy: Policy) -> None:
        self._policy, whole = policy, policy.spec
        observation = {key: array for key, array in whole.observation.items() if key not in OF_BASE}
        self.spec = replace(whole, observation=observation, base=None)
        self._of_base = {key: array.shape for key, array in whole.observation.items() if key in OF_BASE}

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        num_rows = len(next(iter(observations.values())))
        unknown = {key: np.full((num_rows, *shape), np.nan, np.float32) for key, shape in self._of_base.items()}
        chunk = self._policy.act({**observations, **unknown}, context)
        return replace(chunk, extras={name: value for name, value in chunk.extras.items() if name not in OF_BASE})

    def load(self, snapshot: WeightSnapshot) -> None:
        self._policy.load(snapshot)

    def warmup(self) -> None:
        self._policy.warmup()

    def reset(self) -> None:
        self._policy.reset()
