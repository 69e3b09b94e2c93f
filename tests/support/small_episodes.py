"""Small episodes with a camera slower than the control rate; helpers to compare and record them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from dovetail.core.contracts import Recorder
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, Observation, Outcome, Purpose, Segment, Source, Step, Verdict

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={
        "state": ArraySpec(shape=(3,)),
        "camera/wrist": ArraySpec(shape=(9, 7, 3), dtype="uint8"),
        "depth": ArraySpec(shape=(4, 6, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def make_episode(
    *,
    id: str = "e1",
    num_steps: int = 5,
    seed: int = 0,
    cuts: tuple[int, ...] = (),
    pictures: Array | None = None,  # [>= num_steps + 1, H, W, 3]
    **other: Any,
) -> Episode:
    rng = np.random.default_rng(seed)
    if pictures is None:
        pictures = rng.integers(0, 256, (num_steps + 1, 9, 7, 3), np.uint8)

    def observation(tick: int) -> Observation:
        return Observation(
            time_ns=tick * 100_000_000,
            values={
                "state": rng.normal(size=3).astype(np.float32),
                "camera/wrist": pictures[tick // 2],  # every frame is seen twice
                "depth": rng.integers(0, 65536, (4, 6, 1), np.uint16),
            },
        )

    steps = [
        Step(
            observation=observation(tick),
            proposed=rng.normal(size=2).astype(np.float32),
            executed=rng.normal(size=2).astype(np.float32),
            source=Source.HUMAN if tick in (1, 2, 4) else Source.POLICY,
            policy_version=3 + tick // 3,
            chunk_id=tick,
            chunk_index=0,
            verdict=Verdict(outcome=None, rewards={"reach": 0.1 * tick}, metrics={"distance": 1.0}),
            extras={"log_prob": np.float64(-0.5)[None]},
        )
        for tick in range(num_steps)
    ]
    borders = [0, *cuts, num_steps]
    segments = tuple(
        Segment.of(
            steps[a:b],
            episode_id=id,
            first=a,
            last_observation=observation(num_steps) if b == num_steps else None,
        )
        for a, b in itertools.pairwise(borders)
    )
    fields: dict[str, Any] = {
        "task": "peg_insertion",
        "prompt": "put the peg in — büro",
        "robot": ROBOT,
        "operator": "scripted",
        "purpose": Purpose.ONLINE,
        "outcome": Outcome.SUCCESS,
        "judgement": None,
        "seed": seed,
        "config_hash": "abc",
        "started_unix_ns": 1_700_000_000_123_456_789,
        "boot_id": "b00t",
    }
    return Episode(**{**fields, **other}, id=id, segments=segments)


def smooth(num_frames: int, height: int, width: int) -> Array:
    """Smooth, moving images, similar to those of a camera."""
    y, x = np.mgrid[:height, :width] / 16
    frames = [np.stack([np.sin(x + t / 9), np.cos(y - t / 7), np.sin(x + y)], axis=-1) for t in range(num_frames)]
    return (127.5 + 100 * np.stack(frames)).astype(np.uint8)


def assert_same_episode(a: Episode, b: Episode) -> None:
    """Assert that two episodes are equal, except for their segments."""
    for field in dataclasses.fields(Episode):
        if field.name != "segments":
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert a.prompt_changes == b.prompt_changes
    assert set(a.segments[0].columns) == set(b.segments[0].columns)
    for name in a.segments[0].columns:
        assert_bits(a.column(name), b.column(name))
    assert a.last_observation.time_ns == b.last_observation.time_ns
    assert set(a.last_observation.values) == set(b.last_observation.values)
    for key, value in a.last_observation.values.items():
        assert_bits(value, b.last_observation.values[key])


def assert_bits(a: Array, b: Array) -> None:
    b = np.asarray(b).astype(b.dtype.newbyteorder("="))
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def cut_short(episode: Episode, num_segments: int) -> Episode:
    """The episode that a crash after `num_segments` segments leaves."""
    segments = list(episode.segments[:num_segments])
    segments[-1] = dataclasses.replace(segments[-1], final=True, last_observation=after(episode, num_segments - 1))
    return dataclasses.replace(
        episode, segments=tuple(segments), outcome=Outcome.ABORTED, judgement=None, reset_s=None
    )


def after(episode: Episode, index: int) -> Observation:
    """The observation after a segment."""
    if index + 1 == len(episode.segments):
        return episode.last_observation
    columns = episode.segments[index + 1].columns
    return Observation(
        time_ns=int(columns["time_ns"][0]),
        values={
            name.removeprefix("observation/"): column[0]
            for name, column in columns.items()
            if name.startswith("observation/")
        },
    )


def record(recorder: Recorder, episode: Episode, *, num_segments: int | None = None, end: bool = True) -> None:
    """Play an episode into a recorder, or the first segments of it."""
    recorder.begin(episode.start)
    for index, segment in enumerate(episode.segments[:num_segments]):
        recorder.append(segment, after=after(episode, index))
    if end:
        recorder.end(
            outcome=episode.outcome,
            judgement=episode.judgement,
            reset_s=episode.reset_s,
            has_success=episode.has_success,
        )
