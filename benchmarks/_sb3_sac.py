"""Stable-Baselines3's SAC on the Gymnasium version of a recipe's task, with the same observations, normalization, networks,
batch size, discount, steps and updates per step as ours, but without interventions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Task
from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError
from dovetail.core.streams import stream
from dovetail.core.types import Array, Observation
from dovetail.envs.gym_env import DovetailEnv

__all__ = ["VARIANTS", "learn_once"]

Reward = Literal["sparse", "dense"]
VARIANTS: tuple[tuple[Reward, bool], ...] = (
    ("sparse", False),
    ("dense", False),
    ("sparse", True),
    ("dense", True),
)


def learn_once(
    config: RunConfig, *, file: Path, reward: Reward, with_demos: bool, every_s: float
) -> dict[str, Any]:
    """`points`: steps and success rate of each evaluation. The result is kept in `file`."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        found = _learn(config, reward=reward, with_demos=with_demos, every_steps=round(10 * every_s))
        write_atomic(file, json.dumps(found, indent=1).encode())
    known: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return known


class _Transition(NamedTuple):
    observation: Array
    next_observation: Array
    action: Array
    reward: float
    done: bool
    info: dict[str, Any]


def _learn(config: RunConfig, *, reward: Reward, with_demos: bool, every_steps: int) -> dict[str, Any]:
    try:
        from stable_baselines3 import SAC
    except ImportError as error:
        raise UsageError('Stable-Baselines3 is not installed: pip install -e ".[bench]"') from error
    started_s = time.monotonic()
    env, trial = _FlatEnv(config, reward), _FlatEnv(config, "sparse")
    demos = list(_demonstrations(env, config))
    observed = np.array([step.observation for step in demos], np.float64)
    for each in (env, trial):
        each.scale(observed.mean(0), observed.std(0))
    algorithm: Any = config.algorithm.config
    model: Any = SAC(
        "MlpPolicy",
        env,
        learning_rate=algorithm.lr,
        batch_size=algorithm.batch_size,
        gamma=algorithm.gamma,
        tau=algorithm.tau,
        learning_starts=100,
        gradient_steps=round(config.learner.utd),
        policy_kwargs={"net_arch": list(algorithm.hidden)},
        seed=config.run.seed,
        device="cpu",
    )
    if with_demos:
        for step in demos:
            model.replay_buffer.add(
                env.scaled(step.observation)[None],
                env.scaled(step.next_observation)[None],
                step.action[None],
                np.array([step.reward]),
                np.array([step.done]),
                [step.info],
            )
    points: list[tuple[int, float]] = []
    while model.num_timesteps < config.run.env_steps:
        model.learn(every_steps, reset_num_timesteps=False)
        points.append((model.num_timesteps, _success(model, trial, config.run.eval_episodes)))
    return {"points": points, "wall_s": time.monotonic() - started_s}


def _success(model: Any, env: _FlatEnv, num_episodes: int) -> float:
    wins = 0
    for index in range(num_episodes):
        observation, _ = env.reset(seed=1_000_000 + index)
        ended = cut_short = False
        info: dict[str, Any] = {}
        while not (ended or cut_short):
            action, _ = model.predict(observation, deterministic=True)
            observation, _, ended, cut_short, info = env.step(action)
        wins += bool(info["is_success"])
    return wins / num_episodes


def _demonstrations(env: _FlatEnv, config: RunConfig) -> Iterator[_Transition]:
    """Successful demonstrations of the recipe's expert: as many, and with the same noise."""
    num_good = num_tried = 0
    while num_good < config.run.demos:
        expert = env.task.expert()
        observation, _ = env.reset(seed=num_tried)
        expert.reset(stream(config.run.seed, "demo", num_tried), noise=config.run.demo_noise)
        num_tried += 1
        steps: list[_Transition] = []
        ended = cut_short = False
        info: dict[str, Any] = {}
        while not (ended or cut_short):
            action = env.to_unit(expert.act(Observation(time_ns=0, values={})))
            after, reward, ended, cut_short, info = env.step(action)
            steps.append(
                _Transition(observation, after, action, reward, ended or cut_short, _episode_end(info, cut_short))
            )
            observation = after
        if info["is_success"]:
            num_good += 1
            yield from steps


def _episode_end(info: dict[str, Any], cut_short: bool) -> dict[str, Any]:
    return {"is_success": info["is_success"], "TimeLimit.truncated": cut_short}


class _FlatEnv(gymnasium.Env[Array, Array]):
    """The recipe's environment: the policy's inputs as one normalized vector, actions from -1 to 1."""

    def __init__(self, config: RunConfig, reward: Reward) -> None:
        assert config.task is not None
        self._env = DovetailEnv(
            task=config.task.type,
            robot=config.robot.type,
            reward=reward,
            task_config={**_settings(config.task.config), "reward": reward},
            robot_config=_settings(config.robot.config),
            safety=_settings(config.safety),
        )
        boxes: Any = self._env.observation_space
        self._keys: tuple[str, ...] = tuple(config.policy.config.inputs) or tuple(boxes.spaces)  # type: ignore[attr-defined]
        size = sum(boxes[key].shape[0] for key in self._keys)
        box: Any = self._env.action_space
        self._middle, self._half = (box.low + box.high) / 2, (box.high - box.low) / 2
        self._mean, self._std = np.zeros(size), np.ones(size)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, box.shape, np.float32)

    @property
    def task(self) -> Task:
        return self._env.task

    def scale(self, mean: Array, std: Array) -> None:
        self._mean, self._std = mean, np.maximum(std, 1e-3)

    def scaled(self, observation: Array) -> Array:
        return ((observation - self._mean) / self._std).clip(-10.0, 10.0).astype(np.float32)

    def to_unit(self, action: Array) -> Array:
        return np.asarray(((action - self._middle) / self._half).clip(-1.0, 1.0), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self._env.reset(seed=seed, options=options)
        return self._vector(observation), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut_short, info = self._env.step(action * self._half + self._middle)
        return self._vector(observation), reward, ended, cut_short, info

    def close(self) -> None:
        self._env.close()

    def _vector(self, observation: dict[str, Array]) -> Array:
        return self.scaled(np.concatenate([observation[key] for key in self._keys]))


def _settings(config: Any) -> dict[str, Any]:
    values: dict[str, Any] = config.model_dump()
    return values
