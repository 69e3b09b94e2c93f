"""Small random episodes for the suites that need recorded data."""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Episode, Labels, Observation, Outcome, Purpose, Segment, Source, Step, Verdict
from dovetail.testing._rig import random_array

__all__ = ["STATE", "make_robot_spec", "random_episode", "random_labels"]

STATE = "state"  # observation [episode number, tick]: tells where a sampled row comes from


def make_robot_spec() -> RobotSpec:
    return RobotSpec(
        name="suite",
        embodiment="suite",
        observation={STATE: ArraySpec(shape=(2,)), "front": ArraySpec(shape=(8, 6, 3), dtype="uint8")},
        action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
        action_kind="suite",
        control_hz=10.0,
    )


def random_episode(
    number: int,
    *,
    robot: RobotSpec | None = None,
    num_steps: int = 6,
    outcome: Outcome = Outcome.SUCCESS,
    purpose: Purpose = Purpose.ONLINE,
    judgement: Outcome | None = None,
) -> Episode:
    """One segment of random steps. The second and third steps are a person's."""
    robot, rng, name = robot or make_robot_spec(), np.random.default_rng(number), f"suite-{number}"

    def observe(tick: int) -> Observation:
        values = {key: random_array(spec, rng) for key, spec in robot.observation.items()}
        if STATE in values:
            values[STATE] = np.array((number, tick), np.float32)
        return Observation(time_ns=tick * 100_000_000, values=values)

    steps = []
    for tick in range(num_steps):
        action, is_last = random_array(robot.action, rng), tick == num_steps - 1
        step: dict[str, Any] = {"observation": observe(tick), "proposed": action, "executed": action}
        step["source"] = Source.HUMAN if tick in (1, 2) else Source.POLICY
        step["verdict"] = Verdict(outcome=outcome if is_last else None, rewards={"task": float(is_last)})
        steps.append(Step(**step, policy_version=1, chunk_id=tick, chunk_index=0))
    return Episode(
        id=name,
        task="suite",
        prompt="push the cube onto the mark",
        robot=robot,
        operator="suite",
        purpose=purpose,
        outcome=outcome,
        judgement=judgement,
        seed=number,
        config_hash="suite",
        started_unix_ns=1,
        segments=(Segment.of(steps, episode_id=name, last_observation=observe(num_steps)),),
    )


def random_labels(episode: Episode, *, seed: int = 0) -> Labels:
    """Random rewards, and a terminal last step unless the episode timed out."""
    discounts = np.ones(len(episode), np.float32)
    discounts[-1] = float(episode.outcome is Outcome.TIMEOUT)
    return Labels(
        episode_id=episode.id,
        rewards=np.random.default_rng(seed).normal(size=len(episode)).astype(np.float32),
        discounts=discounts,
        success=episode.outcome is Outcome.SUCCESS,
        confidence=1.0,
        labeler="suite",
        version=str(seed),
    )
