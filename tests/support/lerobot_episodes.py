"""Small episodes with smooth images, and an in-memory log of them.

Imported by the tests and by the processes they start, so it needs nothing but Dovetail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import (
    Array,
    Episode,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    Source,
    Step,
    Verdict,
)

ROBOT = RobotSpec(
    name="panda-1",
    embodiment="arm7",
    observation={
        "joint_pos": ArraySpec(shape=(3,), names=("a", "b", "c")),
        "gripper": ArraySpec(shape=(1,)),
        "ticks": ArraySpec(shape=(), dtype="int64"),  # float32 cannot hold these
        "camera/front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "wrist": ArraySpec(shape=(33, 41, 1), dtype="uint8"),  # odd sides, one channel
    },
    action=ArraySpec(shape=(2,), names=("x", "y"), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
WITH_DEPTH = replace(
    ROBOT, observation={**ROBOT.observation, "depth": ArraySpec(shape=(24, 32, 1), dtype="uint16")}
)


def picture(shape: tuple[int, ...], tick: float, seed: int = 0) -> Array:
    """A smooth image, unique for each tick and seed, which a codec changes little."""
    height, width, channels = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [
        np.sin(2.0 * x + 0.4 * tick + seed + channel) * np.cos(1.5 * y - 0.3 * tick + 2 * channel)
        for channel in range(channels)
    ]
    return (127.5 + 110 * np.stack(waves, axis=-1)).astype(np.uint8)


def values(spec: ArraySpec, rng: np.random.Generator, tick: int, seed: int) -> Array:
    if spec.is_image:
        return picture(spec.shape, tick, seed)
    if np.dtype(spec.dtype).kind == "f":
        return rng.normal(size=spec.shape).astype(spec.dtype)
    info = np.iinfo(spec.dtype)
    return rng.integers(info.min, info.max, spec.shape, spec.dtype, endpoint=True)


def make_lerobot_episode(
    number: int, *, num_steps: int = 6, robot: RobotSpec = ROBOT, cuts: Sequence[int] = (), **other: Any
) -> Episode:
    rng = np.random.default_rng(number)

    def observe(tick: int) -> Observation:
        observation = {key: np.asarray(values(spec, rng, tick, number)) for key, spec in robot.observation.items()}
        return Observation(time_ns=10**15 + tick * 100_000_000 + int(rng.integers(10**6)), values=observation)

    steps = [
        Step(
            observation=observe(tick),
            proposed=rng.normal(size=robot.action.shape).astype(np.float32),
            executed=rng.normal(size=robot.action.shape).astype(np.float32),
            source=Source.HUMAN if tick in (1, 2) else Source.POLICY,
            policy_version=10 + tick // 3,
            chunk_id=tick // 2,
            chunk_index=tick % 2,
            verdict=Verdict(
                outcome=None, rewards={"reach": 0.1 * tick, "grasp": 0.5}, metrics={"gap": 1.0 / (tick + 1)}
            ),
            extras={"log_prob": np.float64(-0.1 * tick)[None]} if number % 2 else {},
        )
        for tick in range(num_steps)
    ]
    fields: dict[str, Any] = {
        "task": "peg_insertion",
        "prompt": f"put peg {number % 2} in — büro",
        "robot": robot,
        "operator": "kim",
        "purpose": Purpose.ONLINE,
        "outcome": (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT)[number % 3],
        "judgement": None,
        "seed": number,
        "config_hash": "abc",
        "started_unix_ns": 1_700_000_000_123_456_789 + number,
        "boot_id": "b00t",
        **other,
    }
    id = fields.pop("id", f"2026010{1 + number // 1000}T000000-{number:09d}-panda-0")
    borders = [0, *cuts, num_steps]
    segments = tuple(
        Segment.of(
            steps[a:b], episode_id=id, first=a, last_observation=observe(num_steps) if b == num_steps else None
        )
        for a, b in itertools.pairwise(borders)
    )
    return Episode(id=id, segments=segments, **fields)


def make_labels(episode: Episode, *, success: bool) -> Labels:
    rewards = np.linspace(0, 1, len(episode), dtype=np.float32)
    discounts = np.ones(len(episode), np.float32)
    discounts[-1] = 0
    return Labels(
        episode_id=episode.id,
        rewards=rewards,
        discounts=discounts,
        success=success,
        confidence=0.75,
        labeler="person",
        version="3",
        priority=7,
    )


class MemoryLog:
    """The part of an episode log that `export` needs. Episodes are created on demand and not kept."""

    def __init__(self, numbers: Sequence[int], **how: Any) -> None:
        episodes = {number: make_lerobot_episode(number, **how) for number in numbers}
        self._numbers = {episode.id: number for number, episode in episodes.items()}
        self._how = how

    def ids(self) -> list[str]:
        return sorted(self._numbers)

    def episode(self, episode_id: str) -> Episode:
        return make_lerobot_episode(self._numbers[episode_id], **self._how)

    def manifest(self, episode_id: str) -> Any:
        """The fields of an EpisodeInfo that an export reads."""
        episode = self.episode(episode_id)
        return SimpleNamespace(
            id=episode.id,
            robot=episode.robot,
            purpose=episode.purpose,
            outcome=episode.outcome,
            num_steps=len(episode),
            cameras=tuple(key for key, spec in episode.robot.observation.items() if spec.is_picture),
        )

    def load(self, episode_id: str, *, images: bool = True) -> Episode:
        episode = self.episode(episode_id)
        cameras = {key for key, spec in episode.robot.observation.items() if spec.is_picture}
        if images or not cameras:
            return episode
        segments = []
        for segment in episode.segments:
            last = segment.last_observation
            if last is not None:
                last = replace(last, values={k: v for k, v in last.values.items() if k not in cameras})
            columns = {
                name: column
                for name, column in segment.columns.items()
                if name.removeprefix("observation/") not in cameras
            }
            segments.append(replace(segment, columns=columns, last_observation=last))
        return replace(episode, segments=tuple(segments))


class StreamingLog(MemoryLog):
    """A log that streams frames and refuses to load images."""

    def load(self, episode_id: str, *, images: bool = True) -> Episode:
        assert not images, "frames are to be streamed"
        return super().load(episode_id, images=False)

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]:
        episode = self.episode(episode_id)
        for segment in episode.segments:
            yield from segment.columns[f"observation/{camera}"]
        yield episode.last_observation.values[camera]


def psnr_db(a: Array, b: Array) -> float:
    """PSNR of the worst frame of two stacks [N, H, W, C]."""
    errors = ((a.astype(np.float64) - b) ** 2).mean(axis=(1, 2, 3))
    return float(10 * np.log10(255**2 / max(errors.max(), 1e-9)))


def still_episode(*shape: int, num_steps: int) -> Episode:
    """All rows share one black frame, so its video is tiny."""
    small = {key: spec for key, spec in ROBOT.observation.items() if not spec.is_image}
    episode = make_lerobot_episode(0, num_steps=num_steps, robot=replace(ROBOT, observation=small))
    (segment,) = episode.segments
    robot = replace(ROBOT, observation={**small, "front": ArraySpec(shape=shape, dtype="uint8")})
    images = np.broadcast_to(np.zeros(shape, np.uint8), (num_steps, *shape))
    last = segment.last_observation
    assert last is not None
    last = replace(last, values={**last.values, "front": np.zeros(shape, np.uint8)})
    columns = {**segment.columns, "observation/front": images}
    return replace(episode, robot=robot, segments=(replace(segment, columns=columns, last_observation=last),))
