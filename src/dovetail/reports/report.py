"""What a run came to: `report.json`, a learning curve and a video, from nothing but what its folder holds.

It can be written again at any time, also for a run that was cut short: then it says what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import av

from dovetail.core.disk import write_atomic
from dovetail.core.errors import DovetailError, RunFolderError, UsageError
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.episodes.video import Clip, side_by_side, write_video
from dovetail.labels.store import LabelStore
from dovetail.learn.coach import Advice
from dovetail.reports.arm_figures import arm_figures, tasks_of
from dovetail.reports.figures import CurveEpisode, learning_curve
from dovetail.reports.rendering import EpisodeRenderer
from dovetail.runs.advice import open_advice
from dovetail.runs.assembly.arms import arm_groups
from dovetail.runs.folder import RunFolder
from dovetail.runs.schedule import scheduled_evaluations
from dovetail.runs.rollout_history import RolloutHistory

__all__ = ["CURVE", "REPORT", "VIDEO", "Report", "read_report", "write_report"]

REPORT, CURVE, VIDEO = "report.json", "learning_curve.png", "before_after.mp4"

_TILE_PX = 240
_FILM_PX = 360  # filmed larger and scaled down, which smooths the edges
_MAX_FRAMES = 150  # of the longest clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a run. A rate is None until it was evaluated; `missing` says what else is not there."""

    task: str
    seed: int
    config_hash: str
    untrained: Rate | None
    success_before: Rate | None  # cloning's
    success_after: Rate | None
    robot_minutes: float  # online
    demo_minutes: float
    wall_s: float | None
    env_steps: int
    episodes: int
    updates: int
    interventions: int
    human_share: float  # of the online steps
    demos: int
    robots: dict[str, dict[str, Any]] = field(default_factory=dict)  # the same of each, by name
    phase_s: dict[str, float] = field(default_factory=dict)  # where the time of learning online went
    scheduled: tuple[tuple[float, int, Rate], ...] = ()  # robot minutes, online steps, rate: while it learned
    missing: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()  # the coach's that still held at the end
    figure: str | None = None
    video: str | None = None
    video_missing: str | None = None

    @property
    def interval_above(self) -> bool | None:
        """Whether the interval after learning lies wholly above cloning's."""
        if self.success_before is None or self.success_after is None:
            return None
        return self.success_after.low > self.success_before.high

    @property
    def verdict(self) -> str:
        """The run in a line."""
        minutes = f"{self.robot_minutes:.1f} robot minutes"
        before = self.success_before or self.untrained
        if self.success_after is None:
            known = f"{_percent(before)} before learning online, " if before else ""
            return f"{self.task}: {known}not evaluated {'after it ' if before else ''}yet"
        if before is None:
            return f"{self.task}: {_percent(self.success_after)} after {minutes}"
        return f"{self.task}: {_percent(before)} → {_percent(self.success_after)} in {minutes}"

    def to_json(self) -> dict[str, Any]:
        rates = {
            "untrained": self.untrained,
            "success_before": self.success_before,
            "success_after": self.success_after,
        }
        return {
            "verdict": self.verdict,
            "task": self.task,
            "seed": self.seed,
            "config_hash": self.config_hash,
            **{name: rate.to_json() if rate else None for name, rate in rates.items()},
            "scheduled": [
                {"robot_minutes": minutes, "env_steps": steps, **rate.to_json()}
                for minutes, steps, rate in self.scheduled
            ],
            "interval_above": self.interval_above,
            "robot_minutes": self.robot_minutes,
            "demo_minutes": self.demo_minutes,
            "wall_s": self.wall_s,
            "phase_s": self.phase_s,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "interventions": self.interventions,
            "human_share": self.human_share,
            "demos": self.demos,
            "robots": self.robots,
            "missing": list(self.missing),
            "advice": [advice.to_json() for advice in self.advice],
            "figure": self.figure,
            "video": self.video,
            "video_missing": self.video_missing,
        }


def write_report(folder: RunFolder, *, say: Callable[[str], None] = lambda doing: None) -> Report:
    """Write all three files and return the figures. `say` hears what is being done: filming takes seconds."""
    books = _Books(folder)
    try:
        say("drawing the learning curve")
        write_atomic(folder.path / CURVE, _curve(books))
        say("filming before and after")
        video_missing = _try_video(books)
        report = books.report(figure=CURVE, video=None if video_missing else VIDEO, video_missing=video_missing)
        write_atomic(folder.path / REPORT, json.dumps(report.to_json(), indent=2).encode() + b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot write the report of run {folder.path}: {error.strerror or error}") from error
    return report


def read_report(folder: RunFolder) -> Report:
    """The figures of a run in any state, computed from its folder. Writes nothing."""
    files = {key: name for key, name in (("figure", CURVE), ("video", VIDEO)) if (folder.path / name).exists()}
    return _Books(folder).report(**files)


class _Books:
    """What the folder holds, counted as the run counted it: aborted episodes are not in."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.log = EpisodeLog(folder.episodes)
        self._labels = LabelStore(folder.labels)
        infos = [self.log.manifest(episode_id) for episode_id in self.log.ids()]
        infos = [info for info in infos if info.outcome is not Outcome.ABORTED]
        self.demos = [info for info in infos if info.purpose is Purpose.DEMO]
        self.online = [info for info in infos if info.purpose is Purpose.ONLINE]
        self.evaluations = {
            name: found
            for name in ("untrained", "cloning", "after")
            if (found := folder.read_json(f"evaluations/{name}.json")) and found["episodes"]
        }
        self._progress = folder.read_json("progress.json")
        self._practice = RolloutHistory.read(folder)

    def report(self, **files: str | None) -> Report:
        config, online = self.folder.config, self.online
        practice = (
            self._practice
        )  # of on-policy learning, whose episodes the log has only where that was asked for
        env_steps = practice.env_steps or sum(info.num_steps for info in online)
        wall_s = (self._progress or {}).get("wall_s")
        return Report(
            task=tasks_of(online) or (config.task.type if config.task else config.robot.type),
            seed=config.run.seed,
            config_hash=self.folder.config_hash,
            untrained=self.rate("untrained"),
            success_before=self.rate("cloning"),
            success_after=self.rate("after"),
            robot_minutes=practice.robot_minutes or _minutes(online),
            demo_minutes=_minutes(self.demos),
            wall_s=None if wall_s is None else float(wall_s),
            env_steps=env_steps,
            episodes=len(self.curve()),
            updates=self._num_updates(),
            interventions=sum(info.num_interventions for info in online),
            human_share=sum(info.num_human_steps for info in online) / max(env_steps, 1),
            demos=self._num_good_demos(),
            robots=arm_figures(online, self.demos, success=self.success, evaluations=self.evaluations),
            phase_s=dict((self._progress or {}).get("phases", {})),
            scheduled=tuple(scheduled_evaluations(self.folder)),
            missing=tuple(self._missing()),
            advice=open_advice(self.folder),
            **files,
        )

    def rate(self, name: str) -> Rate | None:
        found = self.evaluations.get(name)
        return Rate(successes=found["successes"], episodes=found["episodes"]) if found else None

    def success(self, info: EpisodeInfo) -> bool:
        """By its newest label; by its outcome, where the run ended before it was labelled."""
        labels = self._labels.current(info.id)
        return info.outcome is Outcome.SUCCESS if labels is None else labels.success

    def curve(self) -> list[CurveEpisode]:
        if self._practice.env_steps:
            return self._practice.curve
        done, minutes = [], 0.0
        for info in self.online:
            minutes += info.duration_s / 60.0
            share = info.num_human_steps / info.num_steps
            done.append(CurveEpisode(end_minutes=minutes, success=self.success(info), human_share=share))
        return done

    def _num_good_demos(self) -> int:
        return sum(self.success(info) for info in self.demos)

    def _num_updates(self) -> int:
        """From the end of the run, or from its newest checkpoint, whichever knows of more."""
        counts = [int((self._progress or {}).get("updates", 0))]
        return max(counts + [int(event.get("updates", 0)) for event in self.folder.events("checkpoint")])

    def _missing(self) -> list[str]:
        config = self.folder.config
        wanted = config.run.demos * (len(arm_groups(config)) if config.runtime == "ray" else 1)
        lacks = {
            "untrained: not evaluated yet": config.run.untrained_episodes and "untrained" not in self.evaluations,
            f"demonstrations: {self._num_good_demos()} of {wanted}": self._num_good_demos() < wanted,
            "success_before: cloning was not evaluated yet": (
                config.learner.bc_updates and wanted and "cloning" not in self.evaluations
            ),
            "success_before: nothing was cloned, for run.demos or learner.bc_updates is 0": (
                not (config.learner.bc_updates and wanted)
            ),
            "online episodes: none yet": config.run.env_steps and not self.curve(),
            "success_after: not evaluated yet": "after" not in self.evaluations,
            "wall_s: the run was killed, or is still going": self._progress is None,
        }
        return [what for what, lacking in lacks.items() if lacking]


def _curve(books: _Books) -> bytes:
    report = books.report()
    by = f", {_percent_of(report.human_share)} of the steps" if report.interventions else ""
    facts = (
        _count(report.demos, "demonstration") + f" ({report.demo_minutes:.1f} min)",
        _count(report.episodes, "online episode"),
        _count(report.interventions, "intervention") + by,
        f"seed {report.seed}",
        "bands: 95 % intervals",
    )
    return learning_curve(
        books.curve(),
        title=report.verdict,
        subtitle="  ·  ".join(facts),
        untrained=report.untrained,
        before=report.success_before,
        after=report.success_after,
        scheduled=[(minutes, rate) for minutes, _, rate in report.scheduled],
    )


def _try_video(books: _Books) -> str | None:
    """Write the video; or say why there is none, for a report is worth having without."""
    try:
        _write_video(books)
    except DovetailError as error:
        return str(error)
    except av.FFmpegError as error:
        return f"the video could not be encoded: {error}"
    return None


def _write_video(books: _Books) -> None:
    """Showcase episodes before and after learning, on the same resets, side by side."""
    config, evaluations = books.folder.config, books.evaluations
    first = "cloning" if "cloning" in evaluations else "untrained"
    for name in (first, "after"):
        if name not in evaluations:
            raise UsageError(f"there is no evaluation '{name}' to show yet")
    pairs = list(zip(evaluations[first]["shown"], evaluations["after"]["shown"], strict=False))
    if not pairs:
        raise UsageError("no episodes were kept to be shown: run.showcase_episodes is 0")
    before, after = ([books.log.manifest(pair[side]) for pair in pairs] for side in (0, 1))
    every, fps, speed = _pace(before + after)
    report = books.report()
    note = f"  ({speed:.2g}x speed)" if speed > 1.01 else ""
    with EpisodeRenderer(books.folder, camera=config.run.showcase_camera, size=(_FILM_PX, _FILM_PX)) as filmer:
        frames = side_by_side(
            _clips(before, filmer, every=every),
            _clips(after, filmer, every=every),
            left_title=f"{first}: {_percent(books.rate(first))}",
            right_title=f"after {report.robot_minutes:.1f} robot minutes: {_percent(books.rate('after'))}{note}",
            fps=fps,
            tile_px=_TILE_PX,
        )
        write_video(books.folder.path / VIDEO, frames, fps=fps)


def _pace(infos: Sequence[EpisodeInfo]) -> tuple[int, float, float]:
    """Show each n-th frame, at so many per second, which is so many times real time."""
    control_hz = infos[0].robot.control_hz
    every = math.ceil(max(info.num_steps for info in infos) / _MAX_FRAMES)
    fps = max(control_hz / every, min(control_hz, 10.0))
    return every, fps, fps * every / control_hz


def _clips(infos: Sequence[EpisodeInfo], filmer: EpisodeRenderer, *, every: int) -> list[Clip]:
    clips = []
    for number, info in enumerate(infos, start=1):
        solved = info.outcome is Outcome.SUCCESS
        ending = f"solved in {info.duration_s:.1f} s" if solved else info.outcome.value
        frames = filmer.frames(info.id, every=every)
        clips.append(Clip(frames=frames, success=solved, caption=f"reset {number}: {ending}"))
    return clips


def _minutes(infos: Sequence[EpisodeInfo]) -> float:
    return sum(info.duration_s for info in infos) / 60.0


def _percent(rate: Rate | None) -> str:
    return "?" if rate is None else _percent_of(rate.rate)


def _percent_of(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
