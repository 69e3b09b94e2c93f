"""A small run of simulated episodes: an expert pushes a cube in front of two cameras."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dovetail.config.load import load
from dovetail.core.clock import SimulatedClock
from dovetail.core.types import Episode, EpisodeOrder, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.human.scripted import Demonstrator
from dovetail.robots.safety import SafeRobot
from dovetail.runs.folder import RunFolder
from support.prompt_changes import with_prompts

__all__ = ["CAMERAS", "record_run"]

CAMERAS = ("front", "wrist")


def record_run(
    path: Path, *, num_episodes: int, seconds: float = 1.2, cameras: tuple[str, ...] = CAMERAS
) -> RunFolder:
    """Episodes e00, e01, ...; every third is an evaluation. Each is stored twice, because rendering is slow. The prompt of
    e07 changes.

    Without `cameras` only the simulator's trace is recorded.
    """
    settings = (
        "task=push_cube",
        f"task.time_limit_s={seconds}",
        f"robot.images=[{','.join(cameras)}]",
        "robot.image_size=[64,64]",
    )
    folder = RunFolder.create(path, load(["push-cube"], settings))
    config = folder.config
    task = config.task.build()
    raw = config.robot.build(task=task)
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    actor = config.actor.build(
        robot=SafeRobot(raw, config.safety, clock),
        task=task,
        operator=Demonstrator(task=task, noise=0.3),
        policy=None,
        clock=clock,
        probe=raw.probe,
    )
    log = EpisodeLog(folder.episodes)
    recorded: list[Episode] = []
    for index in range(-(-num_episodes // 2)):
        order = EpisodeOrder(
            id=f"e{index:02d}",
            purpose=Purpose.DEMO,
            seed=3,
            index=index,
            config_hash=folder.config_hash,
        )
        recorded.append(actor.run(order))
    raw.close()
    for index in range(num_episodes):
        episode = _renamed(recorded[index % len(recorded)], index)
        log.commit(with_prompts(episode, {5: "<b>pull</b> it back"}) if episode.id == "e07" else episode)
    return folder


def _renamed(episode: Episode, index: int) -> Episode:
    name = f"e{index:02d}"
    return dataclasses.replace(
        episode,
        id=name,
        purpose=Purpose.EVAL if index % 3 == 2 else Purpose.DEMO,
        started_unix_ns=1_700_000_000_000_000_000 + index * 60_000_000_000,
        segments=tuple(dataclasses.replace(segment, episode_id=name) for segment in episode.segments),
    )
