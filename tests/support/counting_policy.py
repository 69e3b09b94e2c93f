"""A policy without torch whose chunks follow from the state, so that its errors can be worked out by hand."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActionChunk
from dovetail.policies.inputs import check_inputs

__all__ = ["CountingPolicy", "CountingPolicyConfig"]


class CountingPolicyConfig(Config):
    keys: tuple[str, ...] = ("state",)
    horizon: int = 3
    history: dict[str, int] = Field(default_factory=dict)
    bias: tuple[float, ...] = (0.0, 0.0)


class CountingPolicy:
    """Actions (s, -s), (s + 1, -s - 1), ... plus the bias, where s is the newest first number of the first key."""

    Config: ClassVar[type[CountingPolicyConfig]] = CountingPolicyConfig
    brings_weights: ClassVar[bool] = True
    calls: ClassVar[list[dict[str, Any]]] = []
    num_resets: ClassVar[int] = 0

    def __init__(self, config: CountingPolicyConfig, *, robot, seed=0):
        self._config = config
        self.spec = PolicySpec(
            name="counting",
            observation={key: robot.observation[key] for key in config.keys},
            action=robot.action,
            action_kind=robot.action_kind,
            parts=robot.parts,
            horizon=config.horizon,
            history=config.history,
            prompted=True,
        )

    def act(self, observations, context):
        inputs = check_inputs(observations, self.spec)
        CountingPolicy.calls.append(inputs)
        first = inputs[self._config.keys[0]].reshape(-1)[-self.spec.observation[self._config.keys[0]].shape[0]]
        steps = first + np.arange(self.spec.horizon)
        actions = np.stack((steps, -steps), axis=-1) + np.array(self._config.bias)
        return ActionChunk(actions=actions[None].astype(np.float32), observed_ns=0, policy_version=0)

    def warmup(self):
        pass

    def load(self, snapshot):
        pass

    def reset(self):
        CountingPolicy.num_resets += 1
