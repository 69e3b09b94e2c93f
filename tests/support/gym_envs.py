"""Small Gymnasium environments of every kind that `--gym` must handle: a point that moves to a goal.

`gymnasium.make("support.gym_envs:PointDense-v0")` imports this module, which registers them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Point"]


class Point(gymnasium.Env[Any, Any]):
    """`observes`: box, goal (three keys) or image. `reward`: dense (minus the distance), sparse (-1 or 0) or positive."""

    metadata: dict[str, Any] = {"render_fps": 20, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        *,
        observes: str = "box",
        reward: str = "dense",
        success_key: str | None = None,
        action_limit: float = 1.0,
        terminates: bool = False,
    ) -> None:
        self._observes, self._reward, self._success_key, self._terminates = (
            observes,
            reward,
            success_key,
            terminates,
        )
        self.action_space = spaces.Box(-action_limit, action_limit, (2,), np.float32)
        vector = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = {
            "box": spaces.Box(-np.inf, np.inf, (4,), np.float64),
            "goal": spaces.Dict({"observation": vector, "achieved_goal": vector, "desired_goal": vector}),
            "image": spaces.Dict({"state": vector, "side": spaces.Box(0, 255, (16, 16, 3), np.uint8)}),
            "table": spaces.Dict({"table": spaces.Box(0.0, 1.0, (2, 2), np.float64)}),
        }[observes]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._goal = self.np_random.uniform(-1, 1, 2), self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = np.clip(self._at + 0.2 * np.clip(action, -1, 1), -1, 1)
        distance = float(np.linalg.norm(self._at - self._goal))
        success = distance < 0.3
        reward = {"dense": -distance, "sparse": float(success) - 1.0, "positive": np.exp(-distance)}[self._reward]
        info = {} if self._success_key is None else {self._success_key: success}
        return self._observe(), float(reward), self._terminates and success, False, info

    def _observe(self) -> Any:
        if self._observes == "goal":
            return {
                "observation": self._at.copy(),
                "achieved_goal": self._at.copy(),
                "desired_goal": self._goal.copy(),
            }
        if self._observes == "image":
            image = np.zeros((16, 16, 3), np.uint8)
            for channel, place in enumerate((self._at, self._goal)):
                row, column = np.clip((place + 1) * 8, 0, 15).astype(int)
                image[row, column, channel] = 255
            return {"state": self._at.copy(), "side": image}
        if self._observes == "table":
            return {"table": np.stack((self._at, self._goal))}
        return np.concatenate((self._at, self._goal))


def _register(name: str, *, max_episode_steps: int | None = 20, **kwargs: Any) -> None:
    gymnasium.register(
        f"{name}-v0", entry_point=f"{__name__}:Point", max_episode_steps=max_episode_steps, kwargs=kwargs
    )


_register("PointDense")
_register("PointGoal", observes="goal", reward="sparse", success_key="is_success")
_register("PointImage", observes="image", success_key="success")
_register("PointPositive", reward="positive", success_key="success")
_register("PointSucceed", success_key="succeed", terminates=True)
_register("PointEndless", max_episode_steps=None, action_limit=np.inf)
_register("PointTable", observes="table")
