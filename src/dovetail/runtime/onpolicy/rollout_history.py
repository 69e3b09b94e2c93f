"""What practice came to, rollout by rollout, in the run's events: its episodes themselves are seldom kept.

A run that was killed goes on from its checkpoint, and does again what came after it. So a line takes back all lines before
it that had come as far as it has, or further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.reports.figures import CurveEpisode
from dovetail.runs.folder import RunFolder, read_events

if TYPE_CHECKING:  # it brings torch, which whoever reads a report can do without
    from dovetail.runtime.onpolicy.training import Lesson

__all__ = ["PracticeBook", "note_lesson", "practice_lines", "practised_episodes"]

_EVENT = "practice"


def note_lesson(folder: RunFolder, lesson: Lesson, *, env_steps: int, robot_minutes: float) -> None:
    """A line for one rollout: how far practice has come with it, in what time, and the episodes that ended in it."""
    took = {name: lesson.metrics[name] for name in ("collect_s", "update_s") if name in lesson.metrics}
    rewards = {name: mean for name, mean in lesson.means().items() if name.startswith("reward/")}
    folder.event(
        _EVENT,
        env_steps=env_steps,
        robot_minutes=robot_minutes,
        success=[bool(one) for one in lesson.episodes.get("success", ())],
        length=[int(one) for one in lesson.episodes.get("length", ())],
        returns=[float(one) for one in lesson.returns],
        **took,
        **rewards,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeBook:
    """All of it, read back. Nothing where nobody practised."""

    env_steps: int
    robot_minutes: float
    curve: list[CurveEpisode]

    @staticmethod
    def read(folder: RunFolder) -> PracticeBook:
        kept = practice_lines(folder.path)
        curve, minutes = [], 0.0
        for line in kept:
            # when in its rollout an episode ended was not written down: they are spread over it
            share = (line["robot_minutes"] - minutes) / max(len(line["success"]), 1)
            for number, success in enumerate(line["success"], start=1):
                curve.append(CurveEpisode(end_minutes=minutes + number * share, success=success, human_share=0.0))
            minutes = line["robot_minutes"]
        return PracticeBook(env_steps=kept[-1]["env_steps"] if kept else 0, robot_minutes=minutes, curve=curve)


def practice_lines(run: Path) -> list[dict[str, Any]]:
    """The lines that count, in order."""
    kept: list[dict[str, Any]] = []
    for line in read_events(run, _EVENT):
        while kept and kept[-1]["env_steps"] >= line["env_steps"]:
            kept.pop()
        kept.append(line)
    return kept


def practised_episodes(run: Path, *, env_steps: int) -> Iterator[tuple[bool, float]]:
    """Success and return of each that had ended by so many steps, in order. Lines that go further are of updates which a
    checkpoint of these steps does not know: they are done again."""
    for line in practice_lines(run):
        if line["env_steps"] <= env_steps:
            mean = sum(value for name, value in line.items() if name.startswith("reward/"))
            # lines of before each return was written down have their mean only
            yield from zip(line["success"], line.get("returns") or [mean] * len(line["success"]), strict=True)
