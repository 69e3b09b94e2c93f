"""Episodes whose values encode their origin: state = [number, tick], action = 1000 * number + tick, and
each pixel of an image = [number, frame, number ^ frame]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, Labels, Observation, Outcome, Purpose, Segment, Window

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={"state": ArraySpec(shape=(2,)), "wrist": ArraySpec(shape=(4, 4, 3), dtype="uint8")},
    action=ArraySpec(shape=(1,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def pictures(number: int, frames: Array) -> Array:
    """Images [N, 4, 4, 3] that are unique for each episode and frame."""
    pixels = np.stack([np.full_like(frames, number), frames, frames ^ number], axis=1).astype(np.uint8)
    return np.broadcast_to(pixels[:, None, None, :], (len(frames), 4, 4, 3)).copy()


def make_traceable_episode(
    number: int,
    num_steps: int,
    *,
    human: Sequence[int] = (),
    versions: int | Sequence[int] = 0,
    cuts: Sequence[int] = (),
    frames: Sequence[int] | None = None,
    painter: int | None = None,
    id: str = "",
    robot: RobotSpec = ROBOT,
    image_dtype: str = "uint8",
    **other: Any,
) -> Episode:
    """`frames`: which one is seen at each tick, and last; by default each tick has its own. Episodes of one `painter`
    have images in common; by default they have not."""
    ticks = np.arange(num_steps + 1)
    state = np.stack([np.full_like(ticks, number), ticks], axis=1).astype(np.float32)
    wrist = pictures(number if painter is None else painter, ticks if frames is None else np.array(frames)).astype(
        image_dtype
    )
    executed = (1000 * number + ticks[:-1, None]).astype(np.float32)
    columns: dict[str, Array] = {
        "observation/state": state[:-1],
        "observation/wrist": wrist[:-1],
        "proposed": executed + 0.5,
        "executed": executed,
        "source": np.isin(ticks[:-1], human).astype(np.uint8),
        "policy_version": np.broadcast_to(np.array(versions, np.int64), num_steps).copy(),
    }
    name = id or f"e{number}"
    last = Observation(time_ns=0, values={"state": state[-1], "wrist": wrist[-1]})
    segments = tuple(
        Segment(
            episode_id=name,
            first=a,
            final=b == num_steps,
            columns={key: column[a:b] for key, column in columns.items()},
            last_observation=last if b == num_steps else None,
        )
        for a, b in itertools.pairwise([0, *cuts, num_steps])
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


def label(episode: Episode, *, reward: float = 0.0, terminal: bool = True, success: bool | None = None) -> Labels:
    """`reward` for each step, 1 more for the last; `terminal`: whether the episode really ended."""
    num_steps = len(episode)
    rewards = np.full(num_steps, reward, np.float32)
    rewards[-1] = reward + 1.0
    discounts = np.ones(num_steps, np.float32)
    discounts[-1] = 0.0 if terminal else 1.0
    return Labels(
        episode_id=episode.id,
        rewards=rewards,
        discounts=discounts,
        success=terminal if success is None else success,
        confidence=1.0,
        labeler="test",
        version="1",
    )


def batch(size: int) -> dict[str, Array]:
    return {
        "observation/state": np.full((size, 2), np.nan, np.float32),
        "next/state": np.full((size, 2), np.nan, np.float32),
        "action": np.full((size, 1), np.nan, np.float32),
        "reward": np.full(size, np.nan, np.float32),
        "discount": np.full(size, np.nan, np.float32),
    }


def images(size: int) -> dict[str, Array]:
    return {f"{side}/wrist": np.zeros((size, 4, 4, 3), np.uint8) for side in ("observation", "next")}


def steps(sampled: dict[str, Array]) -> set[tuple[int, int]]:
    """Which steps are in a batch: (episode's number, tick)."""
    return {(int(number), int(tick)) for number, tick in sampled["observation/state"]}


def checkable_episode(number: int, num_steps: int, **other: Any) -> Episode:
    """An episode whose rows can be checked with `inconsistent`."""
    return make_traceable_episode(
        number,
        num_steps,
        human=range(0, num_steps, 3),
        versions=num_steps,
        frames=[tick // 2 for tick in range(num_steps + 1)],
        **other,
    )


def verdict(episode: Episode, *, good: bool) -> Labels:
    """+1 for each step and a true end, or -1 for each and none: a sum of both kinds is neither."""
    labels = label(episode, terminal=good)
    labels.rewards[:] = 1.0 if good else -1.0
    return labels


CHECKABLE_WINDOW = Window(gamma=0.5, num_steps=3, horizon=4, history={"state": 2, "wrist": 2})


def checkable_batch(size: int) -> dict[str, Array]:
    """Arrays for the window `CHECKABLE_WINDOW`."""
    return {
        **{f"{side}/state": np.zeros((size, 2, 2), np.float32) for side in ("observation", "next")},
        **{f"{side}/wrist": np.zeros((size, 2, 4, 4, 3), np.uint8) for side in ("observation", "next")},
        **{f"{side}/state/mask": np.zeros((size, 2), bool) for side in ("observation", "next")},
        "action": np.zeros((size, 4, 1), np.float32),
        "action/mask": np.zeros((size, 4), bool),
        "human": np.zeros((size, 4), bool),
        "policy_version": np.zeros((size, 4), np.int64),
        "reward": np.zeros(size, np.float32),
        "discount": np.zeros(size, np.float32),
    }


def inconsistent(into: dict[str, Array]) -> Array:
    """Rows that mix parts of two episodes, ticks, frames or labels."""
    number, tick = into["observation/state"][:, -1].T
    after = into["next/state"][:, -1, 1]
    num_steps, span = into["policy_version"][:, 0], after - tick
    bad = (into["policy_version"] != num_steps[:, None]).any(axis=1) | (tick < 0) | (tick >= num_steps)
    bad |= (span < 1) | (span > 3) | (after > num_steps)
    for side, now in (("observation", tick), ("next", after)):
        seen = np.stack([np.maximum(now - 1, 0), now], axis=1)  # [B, 2]
        bad |= (into[f"{side}/state"][..., 0] != number[:, None]).any(axis=1)
        bad |= (into[f"{side}/state"][..., 1] != seen).any(axis=1)
        bad |= (into[f"{side}/state/mask"] != np.stack([now >= 1, now >= 0], axis=1)).any(axis=1)
        frame = seen // 2
        pixel = np.stack([np.broadcast_to(number[:, None], frame.shape), frame], axis=-1).astype(np.int64)
        pixel = np.concatenate([pixel, pixel[..., :1] ^ pixel[..., 1:]], axis=-1).astype(np.uint8)
        bad |= (into[f"{side}/wrist"] != pixel[:, :, None, None, :]).any(axis=(1, 2, 3, 4))
    num_ahead = into["action/mask"].sum(axis=1)
    ahead = tick[:, None] + np.minimum(np.arange(4), num_ahead[:, None] - 1)
    bad |= (into["action/mask"] != (np.arange(4) < num_ahead[:, None])).any(axis=1)
    bad |= (into["action"][..., 0] != 1000 * number[:, None] + ahead).any(axis=1)
    bad |= (into["human"] != (ahead % 3 == 0)).any(axis=1)
    earned, ended = 2.0 - 0.5 ** (span - 1), after == num_steps
    sign = np.sign(into["reward"])  # 0: not labeled yet
    bad |= into["reward"] != sign * earned
    return bad | (into["discount"] != np.where((sign > 0) & ended, 0.0, 0.5**span))
