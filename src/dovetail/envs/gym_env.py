"""Our tasks as Gymnasium environments, so that other libraries can train on the same ones.

    import dovetail, gymnasium                               # dovetail/envs.py registers them
    env = gymnasium.make("dovetail/PegInsertion-v0", reward="dense")

Actions pass the safety filter, as everywhere, in the units of the robot's spec;
success and failure are `terminated`, a time limit is `truncated`.
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
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.contracts import SimulatedRobot, Task
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.specs import ArraySpec, match
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.robots.safety import SafeRobot, SafetyConfig

__all__ = ["DovetailEnv"]

_ENDED = (Outcome.SUCCESS, Outcome.FAILURE)
_CUT_SHORT = (Outcome.TIMEOUT, Outcome.ABORTED)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class DovetailEnv(gymnasium.Env[dict[str, Array], Array]):
    """A task, a simulated robot, the safety filter and a simulated clock, stepped by whoever calls.

    `info` holds the verdict's `rewards` and `metrics`, `is_success`, and the action `executed`, not always
    the one asked for. `task` and `robot` are plugin names or `module:Class`.
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
            raise UsageError(f"render_mode '{render_mode}' is not known. Valid: rgb_array")
        if reward not in ("sparse", "dense"):
            raise UsageError(f"reward '{reward}' is not known. Valid: sparse, dense")
        self.render_mode = render_mode
        self._task: Task = _build("task", task, _with_reward(task, task_config, reward))
        raw = _build("robot", robot, robot_config, task=self._task)
        if not isinstance(raw, SimulatedRobot):
            raise UsageError(f"robot '{robot}' is not simulated: a Gymnasium env may only drive simulated ones")
        match(raw.spec, task=self._task.spec)
        self._raw = raw
        self._clock = SimulatedClock()
        self._clock.on_advance(raw.advance)
        self._robot = SafeRobot(raw, SafetyConfig.model_validate(safety), self._clock)
        self._period_ns = round(NS_PER_S / raw.spec.control_hz)
        self._picture = _front_camera(raw, render_size) if render_mode else None
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
        self._robot.acknowledge()  # nothing here can be harmed, and whoever resets has seen the exception
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
        ended, cut_short = verdict.outcome in _ENDED, verdict.outcome in _CUT_SHORT
        return self._owned(observation), verdict.reward, ended, cut_short, info

    def render(self) -> Array | None:
        return None if self._picture is None else self._picture()

    def close(self) -> None:
        close = getattr(self._raw, "close", None)
        if close is not None:
            close()

    def _owned(self, observation: Observation) -> dict[str, Array]:
        """Arrays that the caller may keep and write to."""
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
    # limits of what is measured are nominal: a compliant arm slips past them, and the space must hold that
    return spaces.Box(-np.inf, np.inf, spec.shape, np.float32)


def _info(verdict: Verdict) -> dict[str, Any]:
    return {
        "rewards": dict(verdict.rewards),
        "metrics": dict(verdict.metrics),
        "is_success": verdict.outcome is Outcome.SUCCESS,
    }


def _front_camera(robot: SimulatedRobot, size: tuple[int, int]) -> Callable[[], Array]:
    """What `render` shows: a camera of its own in a MuJoCo world, else the robot's observation `front`."""
    world = getattr(robot, "world", None)
    if world is not None:
        from dovetail.robots.sim.cameras import Cameras  # only now: it loads the GL backend

        cameras = Cameras(world=world, names=("front",), width=size[0], height=size[1])
        return lambda: cameras.render("front")
    if "front" not in robot.spec.observation:
        raise UsageError(f"robot '{robot.spec.name}' has no camera 'front' to render")
    return lambda: robot.observe().values["front"].copy()
