"""Dovetail's tasks as Gymnasium environments, so that other libraries can train on them.

    import dovetail, gymnasium                               # dovetail registers them
    env = gymnasium.make("dovetail/PegInsertion-v0", reward="dense")

Actions are in the units of the robot's spec and pass the safety filter. Success and failure set `terminated`, a time limit
sets `truncated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import ValidationError

from dovetail.config.plugins import config_model, resolve
from dovetail.core.abilities import Closes, HasWorld
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.contracts import SimulatedRobot, Task
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.specs import ArraySpec, match
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.robots.safety import SafeRobot, SafetyConfig

__all__ = ["DovetailEnv"]

_TERMINATED = (Outcome.SUCCESS, Outcome.FAILURE)
_TRUNCATED = (Outcome.TIMEOUT, Outcome.ABORTED)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class DovetailEnv(gymnasium.Env[dict[str, Array], Array]):
    """A task and a simulated robot behind the safety filter, with a simulated clock.

    `info` has the verdict's `rewards` and `metrics`, `is_success`, and `executed`, the action after the safety filter.
    `task` and `robot` are plugin names or `module:Class`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]

    def __init__(
        self,
        *,
        task: str,
        robot: str = "sim",
        reward: Literal["sparse", "dense"] = "sparse",
        render_mode: str | None = None,
        render_size: tuple[int, int] = (256, 256),
        task_config: Mapping[str, Any] = _NOTHING,
        robot_config: Mapping[str, Any] = _NOTHING,
        safety: Mapping[str, Any] = _NOTHING,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"unknown render_mode '{render_mode}'. Valid: rgb_array")
        if reward not in ("sparse", "dense"):
            raise UsageError(f"unknown reward '{reward}'. Valid: sparse, dense")
        self.render_mode = render_mode
        self._task: Task = _build("task", task, _with_reward(task, task_config, reward))
        raw = _build("robot", robot, robot_config, task=self._task)
        if not isinstance(raw, SimulatedRobot):
            raise UsageError(f"a Gymnasium environment needs a simulated robot, but '{robot}' is not simulated")
        match(raw.spec, task=self._task.spec)
        self._raw = raw
        self._clock = SimulatedClock()
        self._clock.on_advance(raw.advance)
        self._robot = SafeRobot(raw, SafetyConfig.model_validate(safety), self._clock)
        self._period_ns = round(NS_PER_S / raw.spec.control_hz)
        self._render = _front_camera(raw, render_size) if render_mode else None
        self.metadata = {**self.metadata, "render_fps": max(1, round(raw.spec.control_hz))}  # type: ignore[misc]
        boxes: Any = spaces.Dict({key: _space(spec) for key, spec in raw.spec.observation.items()})
        self.observation_space = boxes
        low, high = raw.spec.action.bounds
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self._num_steps = 0

    @property
    def task(self) -> Task:
        return self._task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._task.reset(self._robot, rng=self.np_random)
        self._robot.acknowledge()  # the caller has seen the exception, and a simulation cannot be damaged
        self._robot.reset()
        self._num_steps = 0
        return self._owned(self._robot.observe()), {"is_success": False}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        executed = self._robot.send(action)
        self._clock.sleep_until(self._clock.now_ns() + self._period_ns)
        observation = self._robot.observe()
        self._num_steps += 1
        verdict = self._task.judge(self._robot, observation, num_steps=self._num_steps)
        info = _info(verdict) | {"executed": executed}
        terminated, truncated = verdict.outcome in _TERMINATED, verdict.outcome in _TRUNCATED
        return self._owned(observation), verdict.reward, terminated, truncated, info

    def render(self) -> Array | None:
        return None if self._render is None else self._render()

    def close(self) -> None:
        if isinstance(self._raw, Closes):
            self._raw.close()

    def _owned(self, observation: Observation) -> dict[str, Array]:
        """Arrays that the caller may keep and modify."""
        return {k: v if v.flags.writeable else v.copy() for k, v in observation.values.items()}


def _build(kind: str, name: str, values: Mapping[str, Any], **handles: Any) -> Any:
    plugin = resolve(kind, name)
    try:
        config = config_model(plugin).model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{kind} '{name}': {where}: {first['msg']}, got {first['input']!r}") from error
    return plugin(config, **handles)


def _with_reward(task: str, values: Mapping[str, Any], reward: str) -> Mapping[str, Any]:
    if "reward" in config_model(resolve("task", task)).model_fields:
        return {"reward": reward, **values}
    if reward == "dense":
        raise UsageError(f"task '{task}' has no dense reward")
    return values


def _space(spec: ArraySpec) -> spaces.Box:
    dtype = np.dtype(spec.dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return spaces.Box(int(limits.min), int(limits.max), spec.shape, dtype.type)
    # measured values may exceed their nominal limits, because an arm is compliant
    return spaces.Box(-np.inf, np.inf, spec.shape, np.float32)


def _info(verdict: Verdict) -> dict[str, Any]:
    return {
        "rewards": dict(verdict.rewards),
        "metrics": dict(verdict.metrics),
        "is_success": verdict.outcome is Outcome.SUCCESS,
    }


def _front_camera(robot: SimulatedRobot, size: tuple[int, int]) -> Callable[[], Array]:
    """The image source of `render`: a camera in the MuJoCo world, or else the robot's observation `front`."""
    if isinstance(robot, HasWorld):
        from dovetail.robots.sim.cameras import Cameras  # imported here: it loads the GL backend

        cameras = Cameras(world=robot.world, names=("front",), width=size[0], height=size[1])
        return lambda: cameras.render("front")
    if "front" not in robot.spec.observation:
        raise UsageError(f"robot '{robot.spec.name}' has no camera 'front' to render")
    return lambda: robot.observe().values["front"].copy()
