"""Every number says where it comes from: state = [episode, tick], action = 1000 * episode + tick."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, Labels, Observation, Outcome, Purpose, Segment

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={"state": ArraySpec(shape=(2,)), "wrist": ArraySpec(shape=(4, 4, 3), dtype="uint8")},
    action=ArraySpec(shape=(1,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def _make(
    number: int,
    num_steps: int,
    *,
    human: Sequence[int] = (),
    cuts: Sequence[int] = (),
    id: str = "",
    robot: RobotSpec = ROBOT,
    image_dtype: str = "uint8",
    **other: Any,
) -> Episode:
    ticks = np.arange(num_steps + 1)
    state = np.stack([np.full_like(ticks, number), ticks], axis=1).astype(np.float32)
    wrist = np.broadcast_to((ticks % 256)[:, None, None, None], (num_steps + 1, 4, 4, 3)).astype(image_dtype)
    executed = (1000 * number + ticks[:-1, None]).astype(np.float32)
    columns: dict[str, Array] = {
        "observation/state": state[:-1],
        "observation/wrist": wrist[:-1],
        "proposed": executed + 0.5,
        "executed": executed,
        "source": np.isin(ticks[:-1], human).astype(np.uint8),
    }
    name = id or f"e{number}"
    last = Observation(time_ns=0, values={"state": state[-1], "wrist": wrist[-1]})
    borders = [0, *cuts, num_steps]
    segments = tuple(
        Segment(
            episode_id=name,
            first=a,
            final=b == num_steps,
            columns={key: column[a:b] for key, column in columns.items()},
            last_observation=last if b == num_steps else None,
        )
        for a, b in itertools.pairwise(borders)
    )
    fields: dict[str, Any] = {
        "task": "push_cube",
        "prompt": "",
        "operator": "none",
        "purpose": Purpose.ONLINE,
        "outcome": Outcome.SUCCESS,
        "judgement": None,
        "seed": 0,
        "config_hash": "",
        "started_unix_ns": 0,
    }
    return Episode(**{**fields, **other}, id=name, robot=robot, segments=segments)


def _label(episode: Episode, *, reward: float = 0.0, terminal: bool = True) -> Labels:
    num_steps = len(episode)
    rewards = np.full(num_steps, reward, np.float32)
    rewards[-1] = reward + 1.0
    discounts = np.ones(num_steps, np.float32)
    discounts[-1] = 0.0 if terminal else 1.0
    return Labels(
        episode_id=episode.id,
        rewards=rewards,
        discounts=discounts,
        success=terminal,
        confidence=1.0,
        labeler="test",
        version="1",
    )


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return _make


@pytest.fixture(scope="session")
def label() -> Callable[..., Labels]:
    return _label
