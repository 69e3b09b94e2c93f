"""A policy for the emulated arm that blocks on request. It loads torch, so it has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing.blocking_plugins import Swing
from dovetail.testing.socket_arm import block_while

__all__ = ["BlockingPolicy", "BlockingPolicyConfig"]


class BlockingPolicyConfig(GaussianMLPConfig):
    """A policy that swings the arm."""

    block_file: str | None = None
    """File that names the calls that block: act. Null: none."""


class BlockingPolicy(GaussianMLP):
    """Swings the arm, so that it moves in every tick. Its network is trained but does not act."""

    Config: ClassVar[type[BlockingPolicyConfig]] = BlockingPolicyConfig

    def __init__(self, config: BlockingPolicyConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._block_file, self._swing = config.block_file, Swing()

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        block_while(self._block_file, "act")
        chunk, horizon = super().act(observations, context), self.spec.horizon
        rows = [{key: values[row] for key, values in observations.items()} for row in range(len(chunk.actions))]
        actions = np.stack([self._swing.actions(values, horizon) for values in rows])
        return ActionChunk(actions=actions, observed_ns=chunk.observed_ns, policy_version=chunk.policy_version)
