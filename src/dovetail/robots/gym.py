"""Any Gymnasium environment as a Robot and its Task.

    robot = GymRobot(GymRobotConfig(id="FetchReach-v4"))
    clock.on_advance(robot.advance)
    robot.task.reset(robot, rng=rng)
    executed = robot.send(action)            # stored
    clock.sleep_until(next_tick)             # the environment steps here, once per control period
    verdict = robot.task.judge(robot, robot.observe(), num_steps=1)

The environment is not reset automatically: after an end its last observation stays. `terminated` ends an episode with
success or failure, `truncated` with a timeout. If both are set, `terminated` counts.

Success is a key of `info`. Without a known key the task has no success (`TaskSpec.has_success`), and a termination only says
that no reward follows.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Expert, Robot, Task
from dovetail.core.errors import ConfigWarning, RobotError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec, TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.robots._gym_info import InfoMetrics
from dovetail.robots._gym_make import make_env

__all__ = ["SUCCESS_KEYS", "GymRobot", "GymRobotConfig", "GymTask", "true_or_false_keys"]

_Env = gymnasium.Env[Any, Any]
SUCCESS_KEYS = ("is_success", "success")
_NO_LIMIT = 1e6  # some environments write the largest float instead of infinity
_NOT_SUCCESS = ("TimeLimit.truncated",)  # flags of `info` that other code of Gymnasium sets


class GymRobotConfig(Config):
    """A Gymnasium environment."""

    BASIC: ClassVar[Collection[str]] = ("id", "kwargs", "control_hz")

    id: str
    """Id for `gymnasium.make`; `module:Name-v0` imports the module first, also from the current folder."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for `gymnasium.make`."""
    control_hz: float = Field(default=10.0, gt=0.0)
    """Steps of the environment per second."""
    prompt: str = ""
    """Text of the task. Empty: the id."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps until a timeout, instead of the environment's own limit."""
    success_key: str | None = None
    """Key of `info` that reports success. Null: `is_success` or `success`; without them, only the return counts."""
    success_ends: bool = True
    """End an episode at success, even if the environment continues (as FetchReach does). False: the end decides."""
    terminated_is_success: bool = False
    """Count a termination as success if `info` has no success key."""
    action_limit: float | None = Field(default=None, gt=0.0)
    """Limit, in both directions, of action axes that the environment leaves without one. Null: such axes have no limit."""
    render_key: str | None = None
    """Add the image of `env.render()` to the observation under this key."""


class GymRobot:
    """A Gymnasium environment with Box actions as a simulated robot."""

    Config: ClassVar[type[GymRobotConfig]] = GymRobotConfig
    brings_task: ClassVar[bool] = True

    def __init__(self, config: GymRobotConfig, *, task: Task | None = None) -> None:
        """A given `task` replaces the environment's own, which stays available as `robot.task`."""
        self._config = config
        self._env = _make(config)
        space = self._env.action_space
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UsageError(f"gym env '{config.id}' takes {space} actions, but a robot needs a Box of floats")
        self._action_space = space
        self._parts = dict(_flatten(self._env.observation_space, env_id=config.id))
        self._period_ns = round(NS_PER_S / config.control_hz)
        self._now_ns = 0
        self._origin_ns = 0  # of the control periods: the last reset
        self._num_periods = 0  # since then
        self._pending: Array | None = None
        self._has_success = config.success_key is not None or config.terminated_is_success
        self.reset_env(seed=0)
        if not self._has_success:
            self._find_success()
        self._spec = self._make_spec()
        self._low, self._high = self._spec.action.bounds
        self.task = GymTask(config, robot=self)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def has_success(self) -> bool:
        return self._has_success

    @property
    def own_control_hz(self) -> float | None:
        """Steps per second according to the environment: by its time step, or the rate of its videos."""
        for name in ("dt", "control_dt", "_control_dt"):
            step_s = getattr(self._env.unwrapped, name, None)
            if isinstance(step_s, int | float) and step_s > 0:
                return round(1.0 / step_s, 3)
        fps = self._env.metadata.get("render_fps")
        return float(fps) if isinstance(fps, int | float) and fps > 0 else None

    @property
    def own_max_steps(self) -> int | None:
        """The environment's own time limit."""
        steps = self._env.spec.max_episode_steps if self._env.spec else None
        return steps if steps is not None and steps > 0 else None

    def observe(self) -> Observation:
        return Observation(time_ns=self._now_ns, values=self._values)

    def send(self, action: Array) -> Array:
        if np.shape(action) != self._spec.action.shape:
            raise RobotError(f"the action has shape {np.shape(action)}, expected {self._spec.action.shape}")
        executed = np.asarray(np.clip(action, self._low, self._high), np.float32)
        if not np.isfinite(executed).all():
            raise RobotError(f"the action is not finite: {executed.tolist()}")
        self._pending = executed.copy()
        self.reward = 0.0
        return executed

    def stop(self) -> None:
        """Do not step until the next action."""
        self._pending = None

    def advance(self, duration_ns: int) -> None:
        """Step once per control period with the last action, until the episode has ended."""
        self._now_ns += duration_ns
        # 1 % tolerance, because the caller may round its period differently
        due = (self._now_ns - self._origin_ns + self._period_ns // 100) // self._period_ns
        for _ in range(due - self._num_periods):
            self._step()
        self._num_periods = due

    def reset_env(self, *, seed: int) -> None:
        raw, info = self._env.reset(seed=seed)
        self.reward, self.terminated, self.truncated = 0.0, False, False
        self.info: Mapping[str, Any] = info
        self._pending = None
        self._origin_ns, self._num_periods = self._now_ns, 0
        self._values = self._convert(raw)

    def close(self) -> None:
        self._env.close()

    def _find_success(self) -> None:
        """Step once, because only then `info` has all keys, and reset again."""
        low, high = (
            np.nan_to_num(b, posinf=0.0, neginf=0.0) for b in (self._action_space.low, self._action_space.high)
        )
        *_, info = self._env.step(((low + high) / 2).astype(self._action_space.dtype))
        self._has_success = any(key in info for key in SUCCESS_KEYS)
        if not self._has_success:
            _report_flags(self._config.id, info)
        self.reset_env(seed=0)

    def _step(self) -> None:
        if self._pending is None or self.terminated or self.truncated:
            return
        action = self._pending.reshape(self._action_space.shape).astype(self._action_space.dtype)
        raw, reward, terminated, truncated, self.info = self._env.step(action)
        self.reward += float(reward)
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        self._values = self._convert(raw)

    def _convert(self, raw: Any) -> dict[str, Array]:
        """Read-only copies by name, because environments may reuse their arrays."""
        values: dict[str, Array] = {}
        for key, (path, spec) in self._parts.items():
            value = raw
            for name in path:
                value = value[name]
            values[key] = np.array(value, spec.dtype).reshape(spec.shape)
        if self._config.render_key:
            values[self._config.render_key] = self._rendered()
        for value in values.values():
            value.setflags(write=False)
        return values

    def _rendered(self) -> Array:
        try:
            image: Any = self._env.render()
        except gymnasium.error.Error as error:
            raise UsageError(f"gym env '{self._config.id}' cannot render: {error}") from error
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise UsageError(
                f"gym env '{self._config.id}' does not render a uint8 [H, W, 3] image: unset render_key"
            )
        return image.copy()

    def _make_spec(self) -> RobotSpec:
        observation = {key: spec for key, (_, spec) in self._parts.items()}
        if (key := self._config.render_key) is not None:
            if key in observation:
                raise UsageError(
                    f"gym env '{self._config.id}' already has an observation '{key}': change render_key"
                )
            observation[key] = ArraySpec(shape=self._values[key].shape, dtype="uint8")
        low, high = (
            np.asarray(b, np.float32).reshape(-1) for b in (self._action_space.low, self._action_space.high)
        )
        if (limit := self._config.action_limit) is not None:
            low, high = np.where(low < -_NO_LIMIT, -limit, low), np.where(high > _NO_LIMIT, limit, high)
        bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        return RobotSpec(
            name=f"gym_{self._config.id}",
            embodiment=self._config.id,
            observation=observation,
            action=ArraySpec(
                shape=low.shape,
                low=tuple(low.tolist()) if bounded else (),
                high=tuple(high.tolist()) if bounded else (),
            ),
            action_kind="gym",
            control_hz=self._config.control_hz,
        )


class GymTask:
    """The environment's own resets, rewards and ends."""

    def __init__(self, config: GymRobotConfig, *, robot: GymRobot) -> None:
        self._config = config
        self._robot = robot
        self._metrics = InfoMetrics()

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name=self._config.id, embodiments=(self._config.id,), has_success=self._robot.has_success)

    @property
    def prompt(self) -> str:
        return self._config.prompt or self._config.id

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        self._robot.reset_env(seed=int(rng.integers(2**31)))

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        env, config = self._robot, self._config
        success = self._success(env.info)
        outcome = None
        if success and (env.terminated or config.success_ends):
            outcome = Outcome.SUCCESS
        elif env.terminated:  # without success, a failure only says that no reward follows
            unknown_is_success = success is None and config.terminated_is_success
            outcome = Outcome.SUCCESS if unknown_is_success else Outcome.FAILURE
            if not env.has_success:
                _report_flags(config.id, env.info)
        elif env.truncated or (config.max_steps is not None and num_steps >= config.max_steps):
            outcome = Outcome.SUCCESS if success else Outcome.TIMEOUT
        return Verdict(
            outcome=outcome,
            rewards={"env": env.reward},
            metrics={
                **self._metrics.read(env.info, first=num_steps == 1),
                "is_success": float(outcome is Outcome.SUCCESS or bool(success)),
            },
        )

    def expert(self) -> Expert:
        raise UsageError(f"gym env '{self._config.id}' has no scripted expert: set run.demos=0 and operator=none")

    def _success(self, info: Mapping[str, Any]) -> bool | None:
        """Success according to `info`; None if it has no such key."""
        keys = (self._config.success_key,) if self._config.success_key else SUCCESS_KEYS
        for key in keys:
            if key in info:
                return bool(np.all(info[key]))
        return None


def true_or_false_keys(info: Mapping[str, Any]) -> list[str]:
    """Keys of `info` that may report success: their values are true or false, or 0 or 1."""
    found = []
    for key, value in info.items():
        if key in _NOT_SUCCESS or not isinstance(value, bool | int | float | np.bool_ | np.number | np.ndarray):
            continue
        if np.size(value) == 1 and float(np.reshape(value, ())) in (0.0, 1.0):
            found.append(key)
    return found


_reported: set[str] = set()  # environments


def _report_flags(env_id: str, info: Mapping[str, Any]) -> None:
    """Warn once about an environment that may report success under another name."""
    keys = true_or_false_keys(info)
    if not keys or env_id in _reported:
        return
    _reported.add(env_id)
    warnings.warn(
        f"gym env '{env_id}' has no known success: `info` has neither {' nor '.join(SUCCESS_KEYS)}, so only the return "
        f"counts. It has {', '.join(keys)}. If one of them reports success, set robot.success_key={keys[0]} "
        "now: a resumed run keeps it",
        ConfigWarning,
        stacklevel=2,
    )


def _make(config: GymRobotConfig) -> _Env:
    kwargs = dict(config.kwargs)
    if config.render_key:
        kwargs.setdefault("render_mode", "rgb_array")
    if config.max_steps is not None:
        kwargs.setdefault("max_episode_steps", -1)  # the task counts steps instead
    return make_env(config.id, kwargs)


def _flatten(
    space: Any, *, env_id: str, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[tuple[str, ...], ArraySpec]]]:
    """Yield key, path and spec of each Box in an observation space."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _flatten(part, env_id=env_id, path=(*path, name))
        return
    key = "/".join(path) or "state"
    if key.endswith("/mask"):
        raise UsageError(
            f"gym env '{env_id}' has an observation '{key}', but '/mask' is reserved for history masks"
        )
    if not isinstance(space, spaces.Box):
        raise UsageError(f"gym env '{env_id}' observes {space} as '{key}', but only Box and Dict can be recorded")
    shape = space.shape or (1,)
    kept = (space.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3) or (
        space.dtype == np.uint16 and len(shape) == 3 and shape[2] == 1
    )
    yield key, (path, ArraySpec(shape=shape, dtype=str(space.dtype) if kept else "float32"))
