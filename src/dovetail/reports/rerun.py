"""An episode as a Rerun recording: cameras, columns and the source of actions, over steps and time.

    camera/<key>            images of each camera
    observation/<key>       other observations
    action/executed, action/proposed
    reward/..., metric/..., extra/...
    label/rewards           of the label that counts
    source                  policy or human
    episode                 a summary as text

The package is an extra (`pip install dovetail[rerun]`) and imported when needed.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import FailureError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Source
from dovetail.episodes.log import EpisodeLog

__all__ = ["open_viewer", "write_rrd"]

_MAX_RAW_PX = 128  # larger images are stored as JPEG: a minute of two raw cameras would be a gigabyte
_JPEG_QUALITY = 92
_COLORS = {Source.POLICY: 0x4C8DFFFF, Source.HUMAN: 0xF0A53CFF}


def write_rrd(path: Path, log: EpisodeLog, episode_id: str, *, label: Labels | None = None) -> int:
    """Write a recording atomically; returns its number of steps."""
    rr = _rerun()
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")  # no link can wait under this name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(exist_ok=False)  # raises here if the folder is not writable, not in a thread of Rerun
        try:
            with rr.RecordingStream("dovetail", recording_id=episode_id) as recording:
                recording.save(partial)
                num_steps = _Sender(rr, recording).send(log, episode_id, label)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another --save") from error
    return num_steps


def open_viewer(log: EpisodeLog, episode_id: str, *, label: Labels | None = None) -> None:
    """Show the episode in Rerun's viewer; starts one if none is open."""
    rr = _rerun()
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("Rerun's viewer needs a display: write a file with --save FILE.rrd and open it elsewhere")
    with rr.RecordingStream("dovetail", recording_id=episode_id) as recording:
        try:
            recording.spawn()
        except RuntimeError as error:
            raise FailureError(f"Rerun's viewer does not start: {error}") from error
        _Sender(rr, recording).send(log, episode_id, label)
        recording.flush()


def _rerun() -> Any:
    try:
        import rerun
    except ImportError as error:
        raise UsageError("Rerun is not installed: pip install dovetail[rerun]") from error
    return rerun


class _Sender:
    """Sends columns and images to Rerun on two timelines: `step`, and `time` since the first step."""

    def __init__(self, rr: Any, recording: Any) -> None:
        self._rr = rr
        self._recording = recording
        if hasattr(recording, "set_log_time_enabled"):  # the time of writing is not a useful timeline
            recording.set_log_time_enabled(False)

    def send(self, log: EpisodeLog, episode_id: str, label: Labels | None) -> int:
        info = log.manifest(episode_id)
        episode = log.load(episode_id, images=False)
        started_ns = int(episode.column("time_ns")[0]) if len(episode) else 0
        times_ns = np.append(episode.column("time_ns"), episode.last_observation.time_ns) - started_ns  # [T + 1]
        self._recording.send_recording_name(episode_id)
        self._recording.log("episode", self._rr.TextDocument(_summary(episode, label)), static=True)
        for path, column in _series(episode, label):
            self._scalars(path, column, times_ns[: len(column)], names=_names(episode.robot, path))
        self._source(episode.column("source"), times_ns)
        for key in info.cameras:
            previous: Array | None = None
            for step, frame in enumerate(log.frames(episode_id, key)):
                if previous is None or not np.array_equal(
                    frame, previous
                ):  # a camera may be slower than the control rate
                    self._image(f"camera/{key}", frame, step, times_ns)
                previous = frame
        return len(episode)

    def _index(self, first: int, times_ns: Array) -> list[Any]:
        steps = np.arange(first, first + len(times_ns))
        durations = times_ns.astype("timedelta64[ns]")
        return [self._rr.TimeColumn("step", sequence=steps), self._rr.TimeColumn("time", duration=durations)]

    def _scalars(self, path: str, column: Array, times_ns: Array, *, names: tuple[str, ...]) -> None:
        if names:
            self._recording.log(path, self._rr.SeriesLines(names=names), static=True)
        columns = self._rr.Scalars.columns(scalars=column.astype(np.float64))
        self._recording.send_columns(path, self._index(0, times_ns), columns)

    def _source(self, source: Array, times_ns: Array) -> None:
        """The source of actions, sent only where it changes."""
        rr = self._rr
        (changes,) = np.nonzero(np.diff(source.astype(np.int16), prepend=-1))
        names = [Source(source[step]).name.lower() for step in changes]
        if hasattr(rr, "StateChange"):  # newer versions of Rerun only
            values = [each.name.lower() for each in _COLORS]
            style = rr.StateConfiguration(values=values, labels=values, colors=list(_COLORS.values()))
            self._recording.log("source", style, static=True)
            columns = rr.StateChange.columns(state=names)
        else:
            columns = rr.TextLog.columns(text=names)
        steps = rr.TimeColumn("step", sequence=changes)
        times = rr.TimeColumn("time", duration=times_ns[changes].astype("timedelta64[ns]"))
        self._recording.send_columns("source", [steps, times], columns)

    def _image(self, path: str, frame: Array, step: int, times_ns: Array) -> None:
        rr = self._rr
        self._recording.set_time("step", sequence=step)
        self._recording.set_time("time", duration=np.timedelta64(int(times_ns[step]), "ns"))
        if frame.dtype == np.uint16:
            self._recording.log(path, rr.DepthImage(frame[..., 0]))
            return
        image = rr.Image(frame[..., 0], "L") if frame.shape[2] == 1 else rr.Image(frame)
        large = max(frame.shape[:2]) > _MAX_RAW_PX
        self._recording.log(path, image.compress(jpeg_quality=_JPEG_QUALITY) if large else image)


def _series(episode: Episode, label: Labels | None) -> Iterator[tuple[str, Array]]:
    """Every numeric column as [T] or [T, N], with its name in Rerun."""
    renamed = {"executed": "action/executed", "proposed": "action/proposed"}
    for name in sorted(episode.segments[0].columns if episode.segments else ()):
        if name in ("time_ns", "source"):
            continue
        column = episode.column(name)
        if column.ndim == 1 or column[0].size:
            yield renamed.get(name, name), column.reshape(len(column), -1) if column.ndim > 1 else column
    if label is not None and len(label.rewards) == len(episode):
        yield "label/rewards", label.rewards


def _names(robot: RobotSpec, path: str) -> tuple[str, ...]:
    if path.startswith("action/"):
        return robot.action.names
    spec = robot.observation.get(path.removeprefix("observation/"))
    return spec.names if spec is not None else ()


def _summary(episode: Episode, label: Labels | None) -> str:
    judged = f", judged {episode.judgement}" if episode.judgement else ""
    verdict = "none" if label is None else f"{'success' if label.success else 'failure'} by {label.labeler}"
    return "\n".join(
        (
            f"{episode.task}: {episode.prompt}",
            *(f"from step {change.step}: {change.prompt}" for change in episode.prompt_changes),
            f"robot: {episode.robot.name}, {episode.robot.control_hz:g} Hz",
            f"purpose: {episode.purpose}, operator {episode.operator}",
            f"outcome: {episode.outcome}{judged}",
            f"label: {verdict}",
            f"length: {len(episode)} steps, {len(episode) / episode.robot.control_hz:.1f} s",
            f"takeovers: {episode.num_interventions}, {episode.num_human_steps} steps",
        )
    )
