"""Episodes to log: small, with a camera slower than the control tick."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Episode, Observation, Outcome, Purpose, Segment, Source, Step, Verdict

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


def _make(
    *, id: str = "e1", num_steps: int = 5, seed: int = 0, cuts: tuple[int, ...] = (), **other: Any
) -> Episode:
    rng = np.random.default_rng(seed)
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
    }
    return Episode(**{**fields, **other}, id=id, segments=segments)


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return _make
