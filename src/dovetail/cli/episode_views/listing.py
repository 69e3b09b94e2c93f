"""`dovetail episodes ls` and `show`: tables of episodes, and the summary of one."""

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

from dovetail.api.episodes import Episodes, RecordedEpisode, parse_filter
from dovetail.api.names import find_run
from dovetail.cli._terminal import console, say, sparkline
from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Labels, Outcome
from dovetail.episodes.log import EpisodeInfo
from dovetail.labels.store import LabelRecord

__all__ = ["ls", "show"]

_COLORS = {
    Outcome.SUCCESS: "green",
    Outcome.FAILURE: "red",
    Outcome.TIMEOUT: "yellow",
    Outcome.ABORTED: "bright_black",
}
_FULL_ID_COLUMNS = 126  # width of a terminal with room for whole ids
_SHORT_ID_CHARS = 12  # the random part of an id


def ls(run: str, filters: dict[str, Any], *, as_json: bool, runs_dir: Path) -> None:
    """Print each episode as soon as it is read: column widths are known beforehand."""
    wanted = parse_filter(**filters)
    path = find_run(run, runs_dir)
    episodes = Episodes(path, wanted)
    if as_json:
        for episode in episodes:
            typer.echo(json.dumps(_facts(episode)))
        for problem in episodes.problems:
            typer.echo(f"damaged: {problem}", err=True)
        return
    num_shown = 0
    line = _Line(episodes.ids)
    for num_shown, episode in enumerate(episodes, start=1):
        if num_shown == 1:
            console.print(line.header(), soft_wrap=True)
        console.print(line.of(episode), soft_wrap=True)
    for problem in episodes.problems:
        console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
    say(f"{num_shown} of {len(episodes.ids)} episodes in {path}")


class _Line:
    """A row of the list, with columns that fit every row."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._full = console.width >= _FULL_ID_COLUMNS
        longest = max(map(len, ids), default=0)
        self._widths = {
            "#": -len(str(len(ids))),  # negative: right-aligned
            "id": longest if self._full else min(longest, _SHORT_ID_CHARS),
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

    def of(self, episode: RecordedEpisode) -> Text:
        info, versions = episode.info, episode.info.policy_versions
        return self._join(
            [
                (str(episode.number), ""),
                (info.id if self._full else info.id[-_SHORT_ID_CHARS:], ""),
                (_moment(info.started_unix_ns)[:16], ""),
                (str(info.purpose), ""),
                (str(info.outcome), _COLORS[info.outcome]),
                _verdict(episode.label),
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


def _facts(episode: RecordedEpisode) -> dict[str, Any]:
    """An episode as JSON."""
    info = episode.info
    return {
        "number": episode.number,
        "id": info.id,
        "task": info.task,
        "prompt": info.prompt,
        "prompt_changes": [{"step": change.step, "prompt": change.prompt} for change in info.prompt_changes],
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
        "label": _label_facts(episode.label) if episode.label else None,
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
    episodes = Episodes(find_run(run, runs_dir))
    one = episodes[episode]
    if rerun or save is not None:
        _to_rerun(one, episodes.problems, save=save, view=rerun)
        return
    _print_facts(one.info)
    try:
        _print_history(one.label_history())
    except StoreError as error:  # show the episode also if its labels are damaged
        console.print(Text(f"damaged: {error}", style="red"), soft_wrap=True)
    console.print()
    table = _table(("column", "type", "min", "mean", "max", "over time"), right=("min", "mean", "max"))
    for name, column in sorted(one.arrays().items()):
        table.add_row(*_summary(name, column))
    console.print(table)


def _print_facts(info: EpisodeInfo) -> None:
    facts = (
        ("id", info.id),
        ("task", f"{info.task}: {info.prompt}"),
        *(("", f"from step {change.step}: {change.prompt}") for change in info.prompt_changes),
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
    """Size and quality of each camera's images. The quality was measured when they were written."""
    if not info.images:
        yield "cameras", "none recorded"
    for number, (name, images) in enumerate(info.images.items()):
        height, width = images.shape[:2]
        quality = "exact" if images.psnr_db is None else f"{images.psnr_db:.1f} dB"
        each, raw = (total / max(1, images.num_frames) / 1024 for total in (images.num_bytes, images.raw_bytes))
        kept = f"{images.codec}, {quality}, {each:.3g} KiB each ({raw:.3g} raw)"
        yield "" if number else "cameras", f"{name}: {images.num_frames} frames {width}x{height}, {kept}"


def _print_history(history: Sequence[LabelRecord]) -> None:
    """Every label, oldest first; the current one is marked."""
    if not history:
        console.print(Text.assemble((f"{'labels':<13}", "bright_black"), "none yet"), soft_wrap=True)
        return
    candidates = [
        (record.labels.priority, place)
        for place, record in enumerate(history)
        if record.labels.priority >= 0 and not record.retracted
    ]
    current = max(candidates)[1] if candidates else None
    console.print()
    names = ("label", "labeler", "version", "priority", "added", "return", "")
    table = _table(names, right=("priority", "return"))
    for place, record in enumerate(history):
        labels = record.labels
        table.add_row(
            Text(*_verdict(labels)),
            labels.labeler,
            labels.version,
            str(labels.priority),
            _moment(record.added_unix_ns),
            f"{labels.rewards.sum():.3g}",
            "◀ current" if place == current else "retracted" if record.retracted else "",
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


def _to_rerun(episode: RecordedEpisode, problems: Sequence[str], *, save: Path | None, view: bool) -> None:
    from dovetail.reports.rerun import open_viewer, write_rrd

    for problem in problems:  # damaged labels
        console.print(Text(f"without its label: {problem}", style="red"), soft_wrap=True)
    if save is not None:
        with console.status(f"writing {save}"):
            count = write_rrd(save, episode.log, episode.id, label=episode.label)
        say(f"{save}: {count} steps; view it with: rerun {save}")
    if view:
        with console.status("opening Rerun"):
            open_viewer(episode.log, episode.id, label=episode.label)
        say(f"episode {episode.id} is open in Rerun")
