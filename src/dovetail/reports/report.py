"""The report of a run: `report.json`, a learning curve and a video, computed from the run folder alone.

It can be written again at any time, also for an interrupted run: then it lists what is missing.
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
from dovetail.core.figures import EpisodeScore, Mean, Performance, short
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.episodes.video import Clip, side_by_side, write_video
from dovetail.labels.store import LabelStore
from dovetail.learn.coach import Advice
from dovetail.reports._best import BestCheckpoint, better_checkpoint
from dovetail.reports.arm_summaries import arm_summaries, tasks_of
from dovetail.reports.learning_curve import CurveEpisode, learning_curve
from dovetail.reports.rendering import RunRenderer, video_camera
from dovetail.reports.rollouts import RolloutHistory
from dovetail.runs.advice import open_advice
from dovetail.runs.assembly.arms import arm_groups, config_of, has_operator
from dovetail.runs.folder import RunFolder
from dovetail.runs.schedule import scheduled_evaluations

__all__ = ["CURVE", "REPORT", "VIDEO", "Report", "read_report", "write_report"]

REPORT, CURVE, VIDEO = "report.json", "learning_curve.png", "before_after.mp4"

_TILE_PX = 240
_RENDER_PX = 360  # rendered larger and scaled down, which smooths edges
_MAX_FRAMES = 150  # of the longest clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a run. An evaluation is missing until it is made; `missing` lists what else is missing."""

    task: str
    seed: int
    config_hash: str
    evaluations: dict[str, Performance]  # untrained, cloning, after
    robot_minutes: float  # of online learning
    demo_minutes: float
    wall_s: float | None
    env_steps: int
    episodes: int
    updates: int
    interventions: int
    human_share: float  # of the online steps, by an operator
    demos: int
    robots: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the name of each arm
    phase_s: dict[str, float] = field(default_factory=dict)  # seconds of online learning by activity
    scheduled: tuple[tuple[float, int, Performance], ...] = ()  # robot minutes, online steps, figures
    missing: tuple[str, ...] = ()
    best: BestCheckpoint | None = None  # if it was better than the final weights
    has_operator: bool = True
    has_pictures: bool = True  # the last episode has images, or a simulator trace to render them
    advice: tuple[Advice, ...] = ()  # advice of the coach that was open at the end
    figure: str | None = None
    video: str | None = None
    video_missing: str | None = None

    @property
    def untrained(self) -> Rate | None:
        """Success rate of the untrained policy; None if it was not evaluated or the environment has no success."""
        return self._success("untrained")

    @property
    def success_before(self) -> Rate | None:
        """Success rate after cloning."""
        return self._success("cloning")

    @property
    def success_after(self) -> Rate | None:
        return self._success("after")

    def _success(self, name: str) -> Rate | None:
        made = self.evaluations.get(name)
        return made.success if made else None

    @property
    def before(self) -> Performance | None:
        """The figures before learning online: after cloning, or else untrained."""
        return self.evaluations.get("cloning") or self.evaluations.get("untrained")

    @property
    def after(self) -> Performance | None:
        return self.evaluations.get("after")

    @property
    def interval_above(self) -> bool | None:
        """Whether the interval after learning lies above that of cloning without overlap. Without success, that of the
        return, and without cloning that of the untrained policy."""
        after = self.after.main if self.after else None
        before: Rate | Mean | None = self.success_before
        if not isinstance(after, Rate):
            before = self.before.main if self.before else None
        return None if before is None or after is None else after.low > before.high

    @property
    def interventions_per_minute(self) -> float | None:
        """Interventions per robot minute of online learning."""
        return self.interventions / self.robot_minutes if self.robot_minutes else None

    @property
    def verdict(self) -> str:
        """The result in one line."""
        before, after = self.before, self.after
        if after is None:
            known = f"{_figure(before)} before learning online, " if before else ""
            return f"{self.task}: {known}not evaluated {'after it ' if before else ''}yet"
        if before is None:
            return f"{self.task}: {_figure(after)} after {self.effort}"
        # the unit once: "return -1180 → -262"
        when = f"in {self.effort}" if self.env_steps else f"after {self.effort}"
        return f"{self.task}: {_figure(before)} → {_figure(after).removeprefix('return ')} {when}"

    @property
    def effort(self) -> str:
        """The robot minutes of online learning; without any, `training`."""
        return f"{self.robot_minutes:.1f} robot minutes" if self.env_steps else "training"

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
            "evaluations": {name: made.to_json() for name, made in self.evaluations.items()},
            "scheduled": [
                {"robot_minutes": minutes, "env_steps": steps, **made.to_json()}
                for minutes, steps, made in self.scheduled
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
            "interventions_per_minute": self.interventions_per_minute,
            "human_share": self.human_share,
            "demos": self.demos,
            "robots": self.robots,
            "best": self.best.to_json() if self.best else None,
            "missing": list(self.missing),
            "advice": [advice.to_json() for advice in self.advice],
            "figure": self.figure,
            "video": self.video,
            "video_missing": self.video_missing,
        }


def write_report(
    folder: RunFolder, *, on_step: Callable[[str], None] = lambda step: None, with_video: bool = True
) -> Report:
    """Write all three files and return the report. `on_step` gets the current step: rendering takes seconds."""
    data = _RunData(folder)
    try:
        on_step("drawing the learning curve")
        write_atomic(folder.path / CURVE, _curve(data))
        video_missing: str | None = "it is rendered when the run has ended"
        if with_video:
            on_step("rendering the video")
            video_missing = _try_video(data)
        report = data.report(figure=CURVE, video=None if video_missing else VIDEO, video_missing=video_missing)
        write_atomic(folder.path / REPORT, json.dumps(report.to_json(), indent=2).encode() + b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot write the report of run {folder.path}: {error.strerror or error}") from error
    return report


def read_report(folder: RunFolder) -> Report:
    """The report of a run in any state, computed from its folder. Writes nothing."""
    files = {key: name for key, name in (("figure", CURVE), ("video", VIDEO)) if (folder.path / name).exists()}
    return _RunData(folder).report(**files)


class _RunData:
    """Episodes and evaluations of a run folder, counted as the run counts them: without aborted episodes."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.log = EpisodeLog(folder.episodes)
        self._labels = LabelStore(folder.labels)
        infos = [self.log.manifest(episode_id) for episode_id in self.log.ids()]
        infos = [info for info in infos if info.outcome is not Outcome.ABORTED]
        self._all = infos
        self.demos = [info for info in infos if info.purpose is Purpose.DEMO]
        self.online = [info for info in infos if info.purpose is Purpose.ONLINE]
        self.evaluations = {
            name: found
            for name in ("untrained", "cloning", "after")
            if (found := folder.read_json(f"evaluations/{name}.json")) and found["episodes"]
        }
        self._progress = folder.read_json("progress.json")
        self._rollouts = RolloutHistory.read(folder)

    def report(self, **files: str | None) -> Report:
        config, online = self.folder.config, self.online
        rollouts = self._rollouts  # of on-policy learning, whose episodes are not always in the log
        env_steps = rollouts.env_steps or sum(info.num_steps for info in online)
        wall_s = (self._progress or {}).get("wall_s")
        return Report(
            task=tasks_of(online)
            or (config.task.type if config.task else tasks_of(self._all) or config.robot.type),
            seed=config.run.seed,
            config_hash=self.folder.config_hash,
            evaluations={name: Performance.from_json(found) for name, found in self.evaluations.items()},
            robot_minutes=rollouts.robot_minutes or _minutes(online),
            demo_minutes=_minutes(self.demos),
            wall_s=None if wall_s is None else float(wall_s),
            env_steps=env_steps,
            episodes=len(self.curve()),
            updates=self._num_updates(),
            interventions=sum(info.num_interventions for info in online),
            human_share=sum(info.num_human_steps for info in online) / max(env_steps, 1),
            demos=self._num_good_demos(),
            robots=arm_summaries(online, self.demos, success=self.success, evaluations=self.evaluations),
            phase_s=dict((self._progress or {}).get("phases", {})),
            scheduled=tuple(scheduled_evaluations(self.folder)),
            missing=tuple(self._missing()),
            best=better_checkpoint(self.folder, self.evaluations.get("after")),
            has_operator=self._has_operator(),
            has_pictures=self._has_pictures(),
            advice=open_advice(self.folder),
            **files,
        )

    def success(self, info: EpisodeInfo) -> bool:
        """By its newest label; by its outcome if it has no label."""
        labels = self._labels.current(info.id)
        return info.outcome is Outcome.SUCCESS if labels is None else labels.success

    def _score(self, info: EpisodeInfo) -> EpisodeScore:
        labels = self._labels.current(info.id)
        success = self.success(info)
        return EpisodeScore(
            success=success if info.has_success or success else None,
            duration_s=info.duration_s,
            reset_s=info.reset_s,
            interventions=info.num_interventions,
            total_reward=None if labels is None else float(labels.rewards.sum()),
        )

    def curve(self) -> list[CurveEpisode]:
        if self._rollouts.env_steps:
            return self._rollouts.curve
        done, minutes = [], 0.0
        for info in self.online:
            minutes += info.duration_s / 60.0
            share = info.num_human_steps / info.num_steps
            done.append(CurveEpisode(end_minutes=minutes, score=self._score(info), human_share=share))
        return done

    def _has_operator(self) -> bool:
        """Whether someone could help; an imported or resumed run may have help of an earlier operator."""
        return has_operator(self.folder.config) or any(e.human_share for e in self.curve())

    def _has_pictures(self) -> bool:
        last = self._all[-1] if self._all else None
        return last is not None and (
            bool(last.cameras) or config_of(self.folder.config, last.robot.name).robot.type == "sim"
        )

    def _num_good_demos(self) -> int:
        return sum(self.success(info) for info in self.demos)

    def _num_updates(self) -> int:
        """The larger number of the end of the run and its newest checkpoint."""
        counts = [int((self._progress or {}).get("updates", 0))]
        return max(counts + [int(event.get("updates", 0)) for event in self.folder.events("checkpoint")])

    def _missing(self) -> list[str]:
        config = self.folder.config
        num_demos = config.run.demos * (len(arm_groups(config)) if config.runtime == "ray" else 1)
        missing = {
            "untrained: not evaluated yet": config.run.untrained_episodes and "untrained" not in self.evaluations,
            f"demonstrations: {self._num_good_demos()} of {num_demos}": self._num_good_demos() < num_demos,
            "success_before: cloning was not evaluated yet": (
                config.learner.bc_updates and num_demos and "cloning" not in self.evaluations
            ),
            "success_before: no cloning, because run.demos or learner.bc_updates is 0": (
                not (config.learner.bc_updates and num_demos)
            ),
            "online episodes: none yet": config.run.env_steps and not self.curve(),
            "success_after: not evaluated yet": "after" not in self.evaluations,
            "wall_s: the run was killed or is still active": self._progress is None,
        }
        return [what for what, is_missing in missing.items() if is_missing]


def _curve(data: _RunData) -> bytes:
    report = data.report()
    share = f", {_percent_of(report.human_share)} of the steps" if report.interventions else ""
    help_given = (_count(report.interventions, "intervention") + share,) if report.has_operator else ()
    facts = (
        _count(report.demos, "demonstration") + f" ({report.demo_minutes:.1f} min)",
        _count(report.episodes, "online episode"),
        *help_given,
        f"seed {report.seed}",
        "bands: 95 % intervals",
    )
    return learning_curve(
        data.curve(),
        title=report.verdict,
        subtitle="  ·  ".join(facts),
        evaluations=report.evaluations,
        scheduled=[(minutes, made) for minutes, _, made in report.scheduled],
        has_operator=report.has_operator,
    )


def _try_video(data: _RunData) -> str | None:
    """Write the video; returns the reason if that fails, because the report is useful without it."""
    try:
        _write_video(data)
    except DovetailError as error:
        return str(error)
    except av.FFmpegError as error:
        return f"the video could not be encoded: {error}"
    return None


def _write_video(data: _RunData) -> None:
    """Episodes before and after learning, on the same resets, side by side."""
    evaluations = data.evaluations
    first = "cloning" if "cloning" in evaluations else "untrained"
    for name in (first, "after"):
        if name not in evaluations:
            raise UsageError(f"the video needs the evaluation '{name}', which is not done yet")
    pairs = list(zip(evaluations[first]["shown"], evaluations["after"]["shown"], strict=False))
    if not pairs:
        raise UsageError("no episodes were recorded for the video: run.video_episodes is 0")
    before, after = ([data.log.manifest(pair[side]) for pair in pairs] for side in (0, 1))
    every, fps, speed = _pace(before + after)
    report = data.report()
    note = f"  ({speed:.2g}x speed)" if speed > 1.01 else ""
    camera = video_camera(data.folder, before[0])
    with RunRenderer(data.folder, camera=camera, size=(_RENDER_PX, _RENDER_PX)) as renderer:
        frames = side_by_side(
            _clips(before, renderer, every=every),
            _clips(after, renderer, every=every),
            left_title=f"{first}: {_figure(report.evaluations[first])}",
            right_title=f"after {report.effort}: {_figure(report.evaluations['after'])}{note}",
            fps=fps,
            tile_px=_TILE_PX,
        )
        write_video(data.folder.path / VIDEO, frames, fps=fps)


def _pace(infos: Sequence[EpisodeInfo]) -> tuple[int, float, float]:
    """Which frames to show: each n-th, the frames per second, and the speed relative to real time."""
    control_hz = infos[0].robot.control_hz
    every = math.ceil(max(info.num_steps for info in infos) / _MAX_FRAMES)
    fps = max(control_hz / every, min(control_hz, 10.0))
    return every, fps, fps * every / control_hz


def _clips(infos: Sequence[EpisodeInfo], renderer: RunRenderer, *, every: int) -> list[Clip]:
    clips = []
    for number, info in enumerate(infos, start=1):
        solved = info.outcome is Outcome.SUCCESS
        ending = f"solved in {info.duration_s:.1f} s" if solved else info.outcome.value
        frames = renderer.frames(info.id, every=every)
        clips.append(Clip(frames=frames, success=solved, caption=f"reset {number}: {ending}"))
    return clips


def _minutes(infos: Sequence[EpisodeInfo]) -> float:
    return sum(info.duration_s for info in infos) / 60.0


def _figure(performance: Performance) -> str:
    """The main figure without its interval."""
    main = performance.main
    if main is None:
        return "?"
    return _percent_of(main.rate) if isinstance(main, Rate) else f"return {short(main.mean)}"


def _percent_of(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
