"""A Gymnasium environment without success: push a mass to the middle. It reports parts of its reward, and metrics.

`robot={type: gym, id: "support.spring_env:Spring-v0"}`
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MAX_STEPS = 25


class Spring(gymnasium.Env[Any, Any]):
    def __init__(self, *, tells_success: bool = False) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._tells_success = tells_success
        self._state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = np.array([self.np_random.uniform(0.5, 1.0), 0.0])
        return self._state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        position, velocity = self._state
        velocity = 0.7 * velocity + 0.3 * float(action[0])
        self._state = np.clip(np.array([position + 0.3 * velocity, velocity]), -10.0, 10.0)
        rewards = {"distance": -abs(float(self._state[0])), "effort": -0.1 * float(action[0]) ** 2}
        info: dict[str, Any] = {"rewards": rewards, "metrics": {"speed": np.float32(velocity), "name": "spring"}}
        if self._tells_success:
            info["is_success"] = abs(self._state[0]) < 0.05
        return self._state.astype(np.float32), sum(rewards.values()), False, False, info


gymnasium.register("Spring-v0", entry_point=Spring, max_episode_steps=MAX_STEPS)
