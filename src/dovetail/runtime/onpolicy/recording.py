"""Record the episodes of a simulated world in the run's log. Optional, because rollouts are learned from in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.actor.actors import make_start
from dovetail.config.schema import ImagesConfig
from dovetail.core.types import (
    Episode,
    EpisodeOrder,
    EpisodeStart,
    Observation,
    Outcome,
    PromptChange,
    Purpose,
    Segment,
    Step,
)
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.assembly.workcell import Workcell
from dovetail.runs.experience import image_codec

__all__ = ["Recording"]


class Recording:
    """Call `begin`, `add` for each step, then `end`, which writes the episode to the log."""

    def __init__(self, workcell: Workcell, log: EpisodeLog, *, seed: int, config_hash: str) -> None:
        self._workcell, self._log = workcell, log
        self._seed, self._config_hash = seed, config_hash
        self._start: EpisodeStart | None = None
        self._steps: list[Step] = []
        self._prompt_changes: list[PromptChange] = []

    @staticmethod
    def from_settings(workcell: Workcell, settings: Mapping[str, Any], *, seed: int) -> Recording:
        log = EpisodeLog(Path(settings["folder"]), images=image_codec(ImagesConfig(**settings["images"])))
        return Recording(workcell, log, seed=seed, config_hash=settings["config_hash"])

    def begin(self, index: int) -> None:
        spec, now_ns = self._workcell.robot.spec, time.time_ns()
        order = EpisodeOrder(
            id=new_episode_id(unix_ns=now_ns, robot=spec.name),
            purpose=Purpose.ONLINE,
            seed=self._seed,
            index=index,
            config_hash=self._config_hash,
            started_unix_ns=now_ns,
        )
        self._start = make_start(order, task=self._workcell.task, robot=spec, operator="none")
        self._steps.clear()
        self._prompt_changes.clear()

    def add(self, step: Step) -> None:
        self._steps.append(step)

    def change_prompt(self, change: PromptChange) -> None:
        self._prompt_changes.append(change)

    def end(self, outcome: Outcome, *, last: Observation, has_success: bool = True) -> None:
        assert self._start is not None, "call begin() first"
        segment = Segment.of(
            self._steps, episode_id=self._start.id, last_observation=last, prompt_changes=self._prompt_changes
        )
        self._log.commit(Episode.of(self._start, [segment], outcome=outcome, reset_s=0.0, has_success=has_success))
        self._start = None
