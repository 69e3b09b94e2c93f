"""Small runs with hand-made episodes and labels."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config.load import load
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Episode, Labels, Observation, Outcome, Purpose, Segment, Source, Step, Verdict
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder

__all__ = ["ROBOT", "label", "made_episode", "made_run"]

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={
        "state": ArraySpec(shape=(3,), names=("x", "y", "z")),
        "front": ArraySpec(shape=(12, 16, 3), dtype="uint8"),
        "depth": ArraySpec(shape=(6, 8, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def made_episode(
    episode_id: str,
    *,
    num_steps: int = 6,
    human: tuple[int, ...] = (),
    version: int = 3,
    images: bool = True,
    started: datetime = datetime(2026, 3, 1, 12, 0),
    **other: Any,
) -> Episode:
    """Actions 0, 1, 2, ...; the gray level of the camera grows by one every second tick."""

    def observation(tick: int) -> Observation:
        values = {"state": np.full(3, tick, np.float32)}
        if images:
            values["front"] = np.full((12, 16, 3), 40 + tick // 2, np.uint8)
            values["depth"] = np.full((6, 8, 1), 1000 + tick, np.uint16)
        return Observation(time_ns=5_000_000_000 + tick * 100_000_000, values=values)

    steps = [
        Step(
            observation=observation(tick),
            proposed=np.full(2, 0.5, np.float32),
            executed=np.array([tick, -tick], np.float32),
            source=Source.HUMAN if tick in human else Source.POLICY,
            policy_version=version,
            chunk_id=tick,
            chunk_index=0,
            verdict=Verdict(outcome=None, rewards={"reach": 0.1 * tick}, metrics={"distance": 1.0}),
        )
        for tick in range(num_steps)
    ]
    segment = Segment.of(steps, episode_id=episode_id, last_observation=observation(num_steps))
    fields: dict[str, Any] = {
        "task": "peg_insertion",
        "prompt": "put the peg in",
        "robot": ROBOT,
        "operator": "scripted",
        "purpose": Purpose.ONLINE,
        "outcome": Outcome.SUCCESS,
        "judgement": None,
        "seed": 0,
        "config_hash": "abc",
        "started_unix_ns": int(started.timestamp() * 1e9),
    }
    return Episode(**{**fields, **other}, id=episode_id, segments=(segment,))


def made_run(path: Path, *episodes: Episode) -> RunFolder:
    folder = RunFolder.create(path, load(["peg-insertion"]))
    for episode in episodes:
        EpisodeLog(folder.episodes).commit(episode)
    return folder


def label(folder: RunFolder, episode_id: str, *, success: bool = True, num_steps: int = 6, **other: Any) -> Labels:
    """Add a label to an episode."""
    fields: dict[str, Any] = {"confidence": 1.0, "labeler": "outcome", "version": "1"}
    labels = Labels(
        episode_id=episode_id,
        rewards=np.eye(num_steps, dtype=np.float32)[-1] * success,
        discounts=np.ones(num_steps, np.float32),
        success=success,
        **{**fields, **other},
    )
    LabelStore(folder.labels).add(labels)
    return labels
