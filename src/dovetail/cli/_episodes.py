"""Episodes of a run as tables, summaries and videos."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.table import Table
from rich.text import Text

from dovetail.cli._runs import find_run
from dovetail.cli._terminal import console, say, sparkline
from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.types import Array, Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog

__all__ = ["find_episode", "ls", "show", "video"]

_COLOURS = {
    Outcome.SUCCESS: "green",
    Outcome.FAILURE: "red",
    Outcome.TIMEOUT: "yellow",
    Outcome.ABORTED: "bright_black",
}
_FULL_IDS = 96  # columns of a terminal that has room for them

Choice = TypeVar("Choice", bound=StrEnum)


def ls(run: str, *, purpose: str | None, outcome: str | None, runs_dir: Path) -> None:
    wanted_purpose, wanted_outcome = _choice(Purpose, purpose), _choice(Outcome, outcome)
    path = find_run(run, runs_dir)
    log = EpisodeLog(path / "episodes")
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("#", "id", "purpose", "outcome"):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "human", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = total = 0
    damaged: list[str] = []
    for total, episode_id in enumerate(log.ids(), start=1):
        try:
            info = log.manifest(episode_id)
        except StoreError as error:  # one damaged episode must not hide the others
            damaged.append(str(error))
            continue
        if wanted_purpose not in (None, info.purpose) or wanted_outcome not in (None, info.outcome):
            continue
        shown += 1
        table.add_row(str(total), *_row(info))
    if shown:
        console.print(table)
    for problem in damaged:
        console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
    say(f"{shown} of {total} episodes in {path}")


def _row(info: EpisodeInfo) -> tuple[str | Text, ...]:
    versions = info.policy_versions
    return (
        info.id if console.width >= _FULL_IDS else info.id.rpartition("-")[2],  # its random part names it as well
        str(info.purpose),
        Text(str(info.outcome), style=_COLOURS[info.outcome]),
        str(info.num_steps),
        f"{100 * info.num_human_steps / max(1, info.num_steps):.0f} %",
        "-" if not versions or max(versions) < 1 else str(max(versions)),
    )


def show(run: str, episode: str, *, runs_dir: Path) -> None:
    path = find_run(run, runs_dir)
    log = EpisodeLog(path / "episodes")
    episode_id = find_episode(log, episode, path)
    info = log.manifest(episode_id)
    loaded = log.load(episode_id, images=False)
    facts = (
        ("id", info.id),
        ("task", f"{info.task}: {info.prompt}"),
        ("robot", f"{info.robot.name}, {info.robot.action_kind}, {info.robot.control_hz:g} Hz"),
        ("started", f"{datetime.fromtimestamp(info.started_unix_ns / 1e9):%Y-%m-%d %H:%M:%S}"),
        ("purpose", f"{info.purpose}, operator {info.operator}"),
        ("outcome", str(info.outcome) + (f", judged {info.judgement}" if info.judgement else "")),
        ("length", f"{info.num_steps} steps, {info.duration_s:.1f} s"),
        ("human", f"{info.num_human_steps} steps in {info.num_interventions} takeovers"),
        ("weights", ", ".join(map(str, info.policy_versions)) or "-"),
        ("cameras", ", ".join(info.cameras) or "none recorded"),
        ("size", f"{info.num_bytes / 1024:.0f} KiB"),
        ("seed, config", f"{info.seed}, {info.config_hash}"),
    )
    for name, value in facts:
        console.print(Text.assemble((f"{name:<13}", "bright_black"), value), soft_wrap=True)
    console.print()
    names = [name for segment in loaded.segments[:1] for name in segment.columns]
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("column", "type", "min", "mean", "max", "over time"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("min", "mean", "max") else "left")
    for name in sorted(names):
        table.add_row(*_summary(name, loaded.column(name)))
    console.print(table)


def _summary(name: str, column: Array) -> tuple[str, ...]:
    kind = f"{column.dtype.name}{list(column.shape[1:])}"
    if name == "time_ns":
        return (name, kind, "", "", "", "")
    values = column.astype(np.float64)
    course = ""
    if column.ndim == 1:
        course = sparkline([float(value) for value in values], width=max(10, min(60, console.width - 72)))
    return (name, kind, f"{values.min():.3g}", f"{values.mean():.3g}", f"{values.max():.3g}", course)


def video(run: str, episode: str, *, out: Path | None, camera: str, size: int, runs_dir: Path) -> None:
    from dovetail.episodes.video import write_video
    from dovetail.runtime.film import episode_frames
    from dovetail.runtime.folder import RunFolder

    folder = RunFolder.open(find_run(run, runs_dir))
    log = EpisodeLog(folder.episodes)
    episode_id = find_episode(log, episode, folder.path)
    info = log.manifest(episode_id)
    target = out or folder.path / "videos" / f"{episode_id}-{camera}.mp4"
    frames = episode_frames(folder, episode_id, camera=camera, size=(size, size))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with console.status(f"filming {info.num_steps} steps"):
            count = write_video(target, frames, fps=info.robot.control_hz)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}; choose another --out") from error
    say(f"{target}: {count} frames of a {info.outcome}")


def find_episode(log: EpisodeLog, text: str, path: Path) -> str:
    """An episode by its id, a unique start or part of it, its number in `ls`, `first` or `last`."""
    ids = log.ids()
    if not ids:
        raise UsageError(f"run {path} has no episodes yet")
    if text in ids:
        return text
    if text in ("first", "last"):
        return ids[0] if text == "first" else ids[-1]
    if text.isdigit() and 1 <= int(text) <= len(ids):
        return ids[int(text) - 1]
    found = [episode_id for episode_id in ids if episode_id.startswith(text)]
    found = found or [episode_id for episode_id in ids if text in episode_id]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"'{text}' stands for {len(found)} episodes, e.g. {found[0]} and {found[1]}: write more of it"
        )
    raise UsageError(f"no episode '{text}' in {path}: `dovetail episodes ls {path}` lists them")


def _choice(kind: type[Choice], text: str | None) -> Choice | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        name = kind.__name__.lower()
        raise UsageError(f"no {name} '{text}'.{did_you_mean(text, [str(value) for value in kind])}") from None
