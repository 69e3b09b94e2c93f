"""A look at a Gymnasium environment: some random steps, and what they show.

facts = look_at(GymRobotConfig(id="FetchReach-v4"))
facts.success_key, facts.max_steps, facts.statistics["observation"].std

The steps are the same each time, so the facts are too, as far as the environment follows its seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.gym import SUCCESS_KEYS, GymRobot, GymRobotConfig, true_or_false_keys

__all__ = ["NUM_STEPS", "GymFacts", "KeyStatistics", "look_at"]

NUM_STEPS = 300
_EPISODE_STEPS = 100  # at most, so that there are several resets


class KeyStatistics(NamedTuple):
    """Mean and standard deviation of each value of one observation, [D]."""

    mean: Array
    std: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GymFacts:
    """What the environment says of itself, and what random steps showed."""

    env_id: str
    observation: Mapping[str, ArraySpec]
    action: ArraySpec
    control_hz: float | None  # None: the environment has no time step
    max_steps: int | None  # its own time limit
    success_key: str | None  # of `info`
    flags: tuple[str, ...]  # other keys of `info` that are true or false
    rewards: tuple[float, ...]  # one per step
    statistics: Mapping[str, KeyStatistics]  # of low-dimensional observations

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(key for key, spec in self.observation.items() if spec.is_image)

    @property
    def reward_range(self) -> tuple[float, float]:
        return min(self.rewards), max(self.rewards)

    @property
    def mean_reward_size(self) -> float:
        """Mean of |reward|."""
        return float(np.abs(self.rewards).mean())


def look_at(config: GymRobotConfig) -> GymFacts:
    """Make the environment once, take random steps and close it. Raises UsageError if it cannot be a robot."""
    robot = GymRobot(config)
    try:
        return _facts(robot, config)
    finally:
        robot.close()


def _facts(robot: GymRobot, config: GymRobotConfig) -> GymFacts:
    rng, spec = np.random.default_rng(0), robot.spec
    low, high = (np.where(np.abs(bound) > 1e6, np.sign(bound), bound) for bound in spec.action.bounds)
    vectors = [key for key, one in spec.observation.items() if one.dtype == "float32" and len(one.shape) == 1]
    seen: dict[str, list[Array]] = {key: [] for key in vectors}
    rewards: list[float] = []
    flags: dict[str, None] = {}  # in the order in which they were seen
    known: dict[str, None] = {}
    num_resets = since_reset = 0
    for _ in range(NUM_STEPS):
        if robot.terminated or robot.truncated or since_reset % _EPISODE_STEPS == 0:
            robot.reset_env(seed=num_resets)
            num_resets, since_reset = num_resets + 1, 0
        robot.send(rng.uniform(low, high).astype(np.float32))
        robot.advance(round(NS_PER_S / spec.control_hz))
        since_reset += 1
        rewards.append(robot.reward)
        flags |= dict.fromkeys(true_or_false_keys(robot.info))
        known |= dict.fromkeys(key for key in SUCCESS_KEYS if key in robot.info)
        for key, values in robot.observe().values.items():
            if key in seen:
                seen[key].append(values)
    success_key = config.success_key or next(iter(known), None)
    return GymFacts(
        env_id=config.id,
        observation=spec.observation,
        action=spec.action,
        control_hz=robot.own_control_hz,
        max_steps=robot.own_max_steps,
        success_key=success_key,
        flags=tuple(key for key in flags if key != success_key),
        rewards=tuple(rewards),
        statistics={key: KeyStatistics(np.mean(rows, 0), np.std(rows, 0)) for key, rows in seen.items()},
    )
