"""Videos of episodes: of one, or a time-lapse of many."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.text import Text

from dovetail.api.episodes import Episodes, RecordedEpisode, parse_filter
from dovetail.api.names import find_run
from dovetail.cli._terminal import console, say
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array
from dovetail.episodes.video import write_video
from dovetail.reports.rendering import RunRenderer, episode_frames, video_camera
from dovetail.reports.timelapse import Pace, Scene, time_lapse
from dovetail.runs.folder import RunFolder

__all__ = ["merge", "one"]

_MERGED_SPEED = 8.0
_HOLD_S = 0.4  # how long the last frame of each episode is shown


def one(
    run: str,
    episode: str | None,
    filters: dict[str, Any],
    *,
    out: Path | None,
    camera: str | None,
    size: int,
    speed: float | None,
    runs_dir: Path,
) -> None:
    if episode is None or not parse_filter(**filters).is_empty:
        raise UsageError("name one episode and no filters, or add --merge for a video of all episodes that match")
    folder = RunFolder.open(find_run(run, runs_dir))
    info = Episodes(folder.path)[episode].info
    episode_id = info.id
    camera = camera or video_camera(folder, info)
    target = out or folder.path / "videos" / f"{episode_id}-{camera}.mp4"
    frames = episode_frames(folder, episode_id, camera=camera, size=(size, size))
    with _writing(target), console.status(f"rendering {info.num_steps} steps"):
        count = write_video(target, frames, fps=info.robot.control_hz * (speed or 1.0))
    say(f"{target}: {count} frames, outcome {info.outcome}")


def merge(
    run: str,
    filters: dict[str, Any],
    *,
    episode: str | None,
    out: Path | None,
    camera: str | None,
    size: int,
    speed: float | None,
    runs_dir: Path,
) -> None:
    if episode is not None:
        raise UsageError(f"--merge shows all episodes that match: leave out '{episode}', or leave out --merge")
    wanted = parse_filter(**filters)
    folder = RunFolder.open(find_run(run, runs_dir))
    episodes = Episodes(folder.path, wanted)
    found = iter(episodes)
    first = next(found, None)
    if first is None:
        raise UsageError(f"none of the {len(episodes.ids)} episodes in {folder.path} matches")
    camera = camera or video_camera(folder, first.info)
    target = out or folder.path / "videos" / f"time-lapse-{camera}.mp4"
    pace = Pace.of(first.info.robot.control_hz, speed=speed or _MERGED_SPEED)
    with (
        _writing(target),
        RunRenderer(folder, camera=camera, size=(size, size)) as filmer,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        scenes = _Scenes(filmer, pace, progress, total=len(episodes.ids))
        frames = time_lapse(
            scenes.of(itertools.chain([first], found)), size_px=size, hold_frames=round(_HOLD_S * pace.fps)
        )
        try:
            count = write_video(target, frames, fps=pace.fps)
        except UsageError:
            if scenes.problems and not scenes.num_shown:
                raise UsageError(scenes.problems[0]) from None  # more specific than the missing frames
            raise
    for problem in (*episodes.problems, *scenes.problems):
        console.print(Text(f"left out: {problem}", style="yellow"), soft_wrap=True)
    say(f"{target}: {scenes.num_shown} episodes, {count / pace.fps:.0f} s at {pace.speed:g} times real time")


class _Scenes:
    """Makes a scene of each episode. Episodes without images are noted in `problems`."""

    def __init__(self, filmer: RunRenderer, pace: Pace, progress: Progress, *, total: int) -> None:
        self._filmer = filmer
        self._pace = pace
        self._progress = progress
        self._task = progress.add_task("rendering", total=total)
        self.num_shown = 0
        self.problems: list[str] = []

    def of(self, episodes: Iterable[RecordedEpisode]) -> Iterator[Scene]:
        for found in episodes:
            info = found.info
            self._progress.update(self._task, completed=found.number - 1)
            try:
                frames = self._filmer.frames(info.id, every=self._pace.every(info.robot.control_hz))
            except (UsageError, StoreError) as error:
                self.problems.append(str(error))
                continue
            newest = max(info.policy_versions, default=0)
            weights = f"  weights {newest}" if newest > 0 else ""
            caption = f"{found.number}  {info.purpose}  {info.outcome}{weights}"
            yield Scene(frames=self._shown(frames), caption=caption, outcome=info.outcome)

    def _shown(self, frames: Iterator[Array]) -> Iterator[Array]:
        try:
            for number, frame in enumerate(frames):
                self.num_shown += number == 0
                yield frame
        except StoreError as error:  # damaged: continue with the next episode
            self.problems.append(str(error))


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}; choose another --out") from error
