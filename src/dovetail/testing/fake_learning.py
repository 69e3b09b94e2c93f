"""A small policy, operator and algorithm in numpy, for tests without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import (
    ActContext,
    ActionChunk,
    Array,
    Event,
    HumanInput,
    Observation,
    SampleRequest,
    View,
    WeightSnapshot,
    Window,
)

__all__ = [
    "FakeAlgorithm",
    "FakeAlgorithmConfig",
    "FakeOperator",
    "FakeOperatorConfig",
    "FakePolicy",
    "FakePolicyConfig",
]


class FakePolicyConfig(Config):
    """A linear policy."""

    horizon: int = 1
    """Actions per chunk."""
    history: dict[str, int] = {}  # noqa: RUF012 pydantic copies it
    """Control ticks per observation key."""
    noise: float = 0.1
    """Standard deviation of sampled actions."""


class FakePolicy:
    """Linear in the mean of each observation, images included."""

    Config: ClassVar[type[FakePolicyConfig]] = FakePolicyConfig

    def __init__(self, config: FakePolicyConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config = config
        self._spec = PolicySpec(
            name="fake",
            observation=robot.observation,
            action=robot.action,
            action_kind=robot.action_kind,
            horizon=config.horizon,
            history=config.history,
        )
        size = sum(3 if spec.is_image else int(np.prod(spec.shape)) for spec in robot.observation.values())
        rng = np.random.default_rng(seed)
        self.weights: Array = rng.normal(0.0, 0.3, (size, robot.action.shape[0]))
        self._low, self._high = robot.action.bounds
        self._version = 0

    @property
    def spec(self) -> PolicySpec:
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        actions = np.tanh(self.features(observations) @ self.weights)[:, None].repeat(self._spec.horizon, 1)
        if not context.deterministic:
            actions += np.random.default_rng(context.seed).normal(0.0, self._config.noise, actions.shape)
        actions = self._low + (np.clip(actions, -1.0, 1.0) + 1.0) / 2.0 * (self._high - self._low)
        return ActionChunk(actions=actions.astype(np.float32), observed_ns=0, policy_version=self._version)

    def features(self, observations: Mapping[str, Array]) -> Array:
        """[B, F]"""
        parts = []
        for key, spec in self._spec.observation.items():
            value = observations[key].astype(np.float64)
            if spec.is_image:
                value = value.mean((-3, -2)) / 255.0
            if key in self._spec.history:
                mask = observations[f"{key}/mask"].astype(np.float64)
                mask = mask.reshape(*mask.shape, *(1,) * (value.ndim - 2))
                value = (value * mask).sum(1) / np.maximum(mask.sum(1), 1.0)
            parts.append(value.reshape(len(value), -1))
        return np.concatenate(parts, 1)

    def warmup(self) -> None:
        pass

    def load(self, snapshot: WeightSnapshot) -> None:
        self.weights = snapshot.components["actor"]["weights"].copy()
        self._version = snapshot.version

    def reset(self) -> None:
        pass


class FakeOperatorConfig(Config):
    """An operator that takes over at random."""

    share: float = 0.5
    """Fraction of the ticks with a takeover."""


class FakeOperator:
    """Takes over at random ticks and signals success at the end of the task."""

    Config: ClassVar[type[FakeOperatorConfig]] = FakeOperatorConfig
    name = "fake"

    def __init__(self, config: FakeOperatorConfig, *, task: Task, robot: RobotSpec | None = None) -> None:
        self._config = config
        self._expert = task.expert()
        self._rng = np.random.default_rng(0)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._rng = rng
        self._expert.reset(rng)

    def poll(self, observation: Observation) -> HumanInput:
        if self._expert.progress(observation) > 0.98:
            return HumanInput(event=Event.SUCCESS)
        if self._rng.random() < self._config.share:
            return HumanInput(action=self._expert.act(observation))
        return HumanInput()


class FakeAlgorithmConfig(Config):
    """Behavior cloning by gradient descent."""

    lr: float = 0.01
    """Learning rate."""
    momentum: float = 0.9
    """Momentum of the gradient."""
    batch_size: int = 16
    """Steps per update."""


class FakeAlgorithm:
    """Clones actions with momentum and noise, so that a checkpoint has several parts."""

    Config: ClassVar[type[FakeAlgorithmConfig]] = FakeAlgorithmConfig

    def __init__(self, config: FakeAlgorithmConfig, *, policy: FakePolicy, seed: int = 0) -> None:
        self._config = config
        self._policy = policy
        self._low, self._high = policy.spec.action.bounds
        self._velocity: Array = np.zeros_like(policy.weights)
        self._seed, self._num_updates = seed, 0

    @property
    def sample_request(self) -> SampleRequest:
        return SampleRequest(
            observation_keys=tuple(self._policy.spec.observation),
            rows={View(): self._config.batch_size},
            window=Window(history=self._policy.spec.history),
        )

    def update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        seen = {key: np.asarray(batch[key]) for key in batch.keys()}  # noqa: SIM118 a TensorDict iterates over rows
        features = self._policy.features(
            {key.partition("/")[2]: value for key, value in seen.items() if key.startswith("observation/")}
        )
        noise = np.random.default_rng((self._seed, self._num_updates)).normal(0.0, 1e-3, features.shape)
        wanted = 2.0 * (seen["action"] - self._low) / np.maximum(self._high - self._low, 1e-6) - 1.0
        error = (features + noise) @ self._policy.weights - wanted
        gradient = features.T @ error / len(features)
        self._velocity = self._config.momentum * self._velocity - self._config.lr * gradient
        self._policy.weights = self._policy.weights + self._velocity
        self._num_updates += 1
        return {"loss": float(np.square(error).mean())}

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return {"actor": {"weights": self._policy.weights.copy()}}

    def state_dict(self) -> Mapping[str, Array]:
        return {
            "weights": self._policy.weights.copy(),
            "velocity": self._velocity.copy(),
            "num_updates": np.array(self._num_updates),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._policy.weights = state["weights"].copy()
        self._velocity = state["velocity"].copy()
        self._num_updates = int(state["num_updates"])
