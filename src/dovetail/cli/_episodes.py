"""Episodes of a run as tables and summaries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from dovetail.cli._episode_filter import Found, Selection, parse_filter
from dovetail.cli._runs import find_run
from dovetail.cli._terminal import console, say, sparkline
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array, Labels, Outcome
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelRecord, LabelStore

__all__ = ["find_episode", "ls", "show"]

_COLOURS = {
    Outcome.SUCCESS: "green",
    Outcome.FAILURE: "red",
    Outcome.TIMEOUT: "yellow",
    Outcome.ABORTED: "bright_black",
}
_FULL_IDS = 126  # columns of a terminal that has room for them
_SHORT_ID = 12  # an id's random part, which names it as well
_DATE, _TELLING = 8, 6  # characters: of the date an id begins with; of a part of an id that can stand for it


def ls(run: str, filters: dict[str, Any], *, as_json: bool, runs_dir: Path) -> None:
    """Each episode is printed as it is read: widths are known beforehand, and a month of episodes is no wait."""
    wanted = parse_filter(**filters)
    path = find_run(run, runs_dir)
    selection = Selection(EpisodeLog(path / "episodes"), LabelStore(path / "labels"), wanted)
    if as_json:
        for found in selection:
            typer.echo(json.dumps(_facts(found)))
        for problem in selection.problems:
            typer.echo(f"damaged: {problem}", err=True)
        return
    shown = 0
    line = _Line(selection.ids)
    for shown, found in enumerate(selection, start=1):
        if shown == 1:
            console.print(line.header(), soft_wrap=True)
        console.print(line.of(found), soft_wrap=True)
    for problem in selection.problems:
        console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
    say(f"{shown} of {len(selection.ids)} episodes in {path}")


class _Line:
    """A row of the list, in columns of a width that fits them all."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._full = console.width >= _FULL_IDS
        longest = max(map(len, ids), default=0)
        self._widths = {
            "#": -len(str(len(ids))),  # negative: to the right
            "id": longest if self._full else min(longest, _SHORT_ID),
            "started": 16,
            "purpose": 7,
            "outcome": 7,
            "label": 6,
            "steps": -5,
            "human": -5,
            "weights": -7,
        }

    def header(self) -> Text:
        return self._join([(name, "bright_black") for name in self._widths])

    def of(self, found: Found) -> Text:
        info, versions = found.info, found.info.policy_versions
        return self._join(
            [
                (str(found.number), ""),
                (info.id if self._full else info.id[-_SHORT_ID:], ""),
                (_moment(info.started_unix_ns)[:16], ""),
                (str(info.purpose), ""),
                (str(info.outcome), _COLOURS[info.outcome]),
                _verdict(found.label),
                (str(info.num_steps), ""),
                (f"{100 * info.num_human_steps / max(1, info.num_steps):.0f} %", ""),
                ("-" if not versions or max(versions) < 1 else str(max(versions)), ""),
            ]
        )

    def _join(self, cells: Sequence[tuple[str, str]]) -> Text:
        line = Text()
        for width, (text, style) in zip(self._widths.values(), cells, strict=True):
            padded = text.rjust(-width) if width < 0 else text.ljust(width)
            line.append(padded, style).append("  " if self._full else " ")
        line.rstrip()
        return line


def _verdict(label: Labels | None) -> tuple[str, str]:
    if label is None:
        return "-", "bright_black"
    if label.discard:
        return "discard", "bright_black"
    sure = "" if label.confidence >= 1 else f" {100 * label.confidence:.0f} %"
    return ("✓" if label.success else "✗") + sure, "green" if label.success else "red"


def _facts(found: Found) -> dict[str, Any]:
    """What other programs are told of an episode."""
    info = found.info
    return {
        "number": found.number,
        "id": info.id,
        "task": info.task,
        "prompt": info.prompt,
        "robot": info.robot.name,
        "operator": info.operator,
        "purpose": info.purpose.value,
        "outcome": info.outcome.value,
        "judgement": info.judgement.value if info.judgement else None,
        "started": datetime.fromtimestamp(info.started_unix_ns / 1e9).astimezone().isoformat(),
        "started_unix_ns": info.started_unix_ns,
        "num_steps": info.num_steps,
        "duration_s": info.duration_s,
        "num_human_steps": info.num_human_steps,
        "num_interventions": info.num_interventions,
        "policy_versions": list(info.policy_versions),
        "cameras": list(info.cameras),
        "num_bytes": info.num_bytes,
        "config_hash": info.config_hash,
        "label": _label_facts(found.label) if found.label else None,
    }


def _label_facts(label: Labels) -> dict[str, Any]:
    return {
        "success": label.success,
        "confidence": label.confidence,
        "return": float(label.rewards.sum()),
        "labeler": label.labeler,
        "version": label.version,
        "priority": label.priority,
    }


def show(run: str, episode: str, *, rerun: bool, save: Path | None, runs_dir: Path) -> None:
    path = find_run(run, runs_dir)
    log, store = EpisodeLog(path / "episodes"), LabelStore(path / "labels")
    episode_id = find_episode(log, episode, path)
    if rerun or save is not None:
        _to_rerun(log, store, episode_id, save=save, view=rerun)
        return
    info = log.manifest(episode_id)
    loaded = log.load(episode_id, images=False)
    _print_facts(info)
    try:
        _print_history(store.history(episode_id))
    except StoreError as error:  # damaged labels must not hide the episode
        console.print(Text(f"damaged: {error}", style="red"), soft_wrap=True)
    console.print()
    names = [name for segment in loaded.segments[:1] for name in segment.columns]
    table = _table(("column", "type", "min", "mean", "max", "over time"), right=("min", "mean", "max"))
    for name in sorted(names):
        table.add_row(*_summary(name, loaded.column(name)))
    console.print(table)


def _print_facts(info: EpisodeInfo) -> None:
    facts = (
        ("id", info.id),
        ("task", f"{info.task}: {info.prompt}"),
        ("robot", f"{info.robot.name}, {info.robot.action_kind}, {info.robot.control_hz:g} Hz"),
        ("started", _moment(info.started_unix_ns)),
        ("purpose", f"{info.purpose}, operator {info.operator}"),
        ("outcome", str(info.outcome) + (f", judged {info.judgement}" if info.judgement else "")),
        ("length", f"{info.num_steps} steps, {info.duration_s:.1f} s"),
        ("human", f"{info.num_human_steps} steps in {_count(info.num_interventions, 'takeover')}"),
        ("weights", ", ".join(map(str, info.policy_versions)) or "-"),
        *_cameras(info),
        ("size", f"{info.num_bytes / 1024:.0f} KiB"),
        ("seed, config", f"{info.seed}, {info.config_hash}"),
    )
    for name, value in facts:
        console.print(Text.assemble((f"{name:<13}", "bright_black"), value), soft_wrap=True)


def _cameras(info: EpisodeInfo) -> Iterator[tuple[str, str]]:
    """What became of each camera's images; how good they are was measured when they were written."""
    if not info.images:
        yield "cameras", "none recorded"
    for number, (name, images) in enumerate(info.images.items()):
        height, width = images.shape[:2]
        quality = "exact" if images.psnr_db is None else f"{images.psnr_db:.1f} dB"
        each, raw = (total / max(1, images.num_frames) / 1024 for total in (images.num_bytes, images.raw_bytes))
        kept = f"{images.codec}, {quality}, {each:.3g} KiB each ({raw:.3g} raw)"
        yield "" if number else "cameras", f"{name}: {images.num_frames} frames {width}x{height}, {kept}"


def _print_history(history: Sequence[LabelRecord]) -> None:
    """All that was said, oldest first, with a mark at what counts."""
    if not history:
        console.print(Text.assemble((f"{'labels':<13}", "bright_black"), "none yet"), soft_wrap=True)
        return
    candidates = [
        (record.labels.priority, place)
        for place, record in enumerate(history)
        if record.labels.priority >= 0 and not record.retracted
    ]
    counts = max(candidates)[1] if candidates else None
    console.print()
    names = ("label", "by", "version", "priority", "said", "return", "")
    table = _table(names, right=("priority", "return"))
    for place, record in enumerate(history):
        said = record.labels
        table.add_row(
            Text(*_verdict(said)),
            said.labeler,
            said.version,
            str(said.priority),
            _moment(record.added_unix_ns),
            f"{said.rewards.sum():.3g}",
            "◀ counts" if place == counts else "taken back" if record.retracted else "",
        )
    console.print(table)


def _table(names: Sequence[str], *, right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in names:
        table.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    return table


def _summary(name: str, column: Array) -> tuple[str, ...]:
    kind = f"{column.dtype.name}{list(column.shape[1:])}"
    if name == "time_ns":
        return (name, kind, "", "", "", "")
    values = column.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return (name, kind, "", "none finite" if column.size else "empty", "", "")
    course = ""
    if column.ndim == 1:
        course = sparkline([float(value) for value in values], width=max(10, min(60, console.width - 72)))
    return (name, kind, f"{values.min():.3g}", f"{values.mean():.3g}", f"{values.max():.3g}", course)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _moment(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns / 1e9):%Y-%m-%d %H:%M:%S}"


def _to_rerun(log: EpisodeLog, store: LabelStore, episode_id: str, *, save: Path | None, view: bool) -> None:
    from dovetail.reports.rerun import open_viewer, write_rrd

    try:
        label = store.current(episode_id)
    except StoreError as error:  # damaged labels must not hide the episode
        label = None
        console.print(Text(f"without its label: {error}", style="red"), soft_wrap=True)
    if save is not None:
        with console.status(f"writing {save}"):
            count = write_rrd(save, log, episode_id, label=label)
        say(f"{save}: {count} steps; look at it with: rerun {save}")
    if view:
        with console.status("opening Rerun"):
            open_viewer(log, episode_id, label=label)
        say(f"episode {episode_id} is in Rerun's viewer")


def find_episode(log: EpisodeLog, text: str, path: Path) -> str:
    """An episode by its id, a unique start or part of it, its number in `ls`, `first` or `last`."""
    ids = log.ids()
    if not ids:
        raise UsageError(f"run {path} has no episodes yet")
    if text in ids:
        return text
    if text in ("first", "last"):
        return ids[0] if text == "first" else ids[-1]
    if text.isdecimal() and len(text) < _DATE:  # a number, never a part of an id: those are full of digits
        if not 1 <= int(text) <= len(ids):
            raise UsageError(f"there is no episode {text} in {path}: they are numbered 1 to {len(ids)}")
        return ids[int(text) - 1]
    found = [episode_id for episode_id in ids if episode_id.startswith(text)]
    if len(text) >= _TELLING:
        found = found or [episode_id for episode_id in ids if text in episode_id]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"'{text}' stands for {len(found)} episodes, e.g. {found[0]} and {found[1]}: write more of it"
        )
    raise UsageError(f"no episode '{text}' in {path}: `dovetail episodes ls {path}` lists them")
