"""Episodes of a toy task without a simulator: a square of the image is bright after success."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dovetail.config.load import load
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Episode, Observation, Outcome, Purpose, Segment
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.folder import RunFolder

__all__ = ["ROBOT", "SIDE", "lamp_episode", "lamp_episodes", "lamp_run"]

SIDE = 16
ROBOT = RobotSpec(
    name="lamplighter",
    embodiment="toy",
    observation={
        "front": ArraySpec(shape=(SIDE, SIDE, 3), dtype="uint8"),
        "meter": ArraySpec(shape=(2,)),
        "gripper": ArraySpec(shape=(1,)),
    },
    action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def lamp_episode(
    number: int,
    *,
    success: bool,
    outcome: Outcome | None = None,
    num_steps: int = 8,
    glare: bool = False,
    robot: RobotSpec = ROBOT,
    purpose: Purpose = Purpose.ONLINE,
) -> Episode:
    """The lamp is on in the last two pictures of a success; the meter reads 1000, and 1003 once it is on. With `glare`
    another spot is bright from the start, which does not mean success."""
    rng = np.random.default_rng(number)
    pictures = rng.integers(0, 90, (num_steps + 1, SIDE, SIDE, 3), np.uint8)
    meter = (1000 + rng.normal(0, 0.3, (num_steps + 1, 2))).astype(np.float32)
    if success:
        pictures[-2:, 2:8, 2:8] = 250
        meter[-2:] += 3
    if glare:
        pictures[:, 10:14, 10:14] = 250
    gripper = np.zeros((num_steps + 1, 1), np.float32)
    observations = {"front": pictures, "meter": meter, "gripper": gripper}
    # a deterministic id, because it decides which episodes are held out
    episode_id = new_episode_id(
        unix_ns=10**18 + number * 10**9, robot=robot.name, rng=np.random.default_rng(number)
    )
    columns = {
        "time_ns": np.arange(num_steps, dtype=np.int64) * 10**8,
        **{f"observation/{key}": values[:-1] for key, values in observations.items()},
        "proposed": np.zeros((num_steps, 1), np.float32),
        "executed": np.zeros((num_steps, 1), np.float32),
        "source": np.zeros(num_steps, np.uint8),
        "policy_version": np.ones(num_steps, np.int64),
        "chunk_id": np.arange(num_steps, dtype=np.int64),
        "chunk_index": np.zeros(num_steps, np.int64),
    }
    last = Observation(time_ns=num_steps * 10**8, values={key: values[-1] for key, values in observations.items()})
    segment = Segment(episode_id=episode_id, first=0, final=True, columns=columns, last_observation=last)
    return Episode(
        id=episode_id,
        task="peg_insertion",
        prompt="light the lamp",
        robot=robot,
        operator="none",
        purpose=purpose,
        outcome=outcome or (Outcome.SUCCESS if success else Outcome.TIMEOUT),
        judgement=None,
        seed=0,
        config_hash="",
        started_unix_ns=10**18 + number * 10**9,
        segments=(segment,),
    )


def lamp_episodes(num: int, *, first: int = 0) -> list[Episode]:
    """Every second episode is a success."""
    return [lamp_episode(first + number, success=number % 2 == 0) for number in range(num)]


def lamp_run(path: Path, episodes: list[Episode], *, overrides: tuple[str, ...] = ()) -> RunFolder:
    folder = RunFolder.create(path, load(["peg-insertion"], list(overrides)))
    for episode in episodes:
        EpisodeLog(folder.episodes).commit(dataclasses.replace(episode, config_hash=folder.config_hash))
    return folder
