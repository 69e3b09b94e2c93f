"""Deleting episodes: only what was named or chosen, only after asking, only where nobody else works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from rich.progress import track

from dovetail.cli._episode_filter import Selection, parse_filter
from dovetail.cli._episodes import find_episode
from dovetail.cli._runs import find_run
from dovetail.cli._terminal import console, say
from dovetail.core.errors import UsageError
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder

__all__ = ["rm"]


def rm(run: str, episodes: list[str], filters: dict[str, Any], *, yes: bool, runs_dir: Path) -> None:
    wanted = parse_filter(**filters)
    if bool(episodes) != wanted.is_empty:
        said = "both name episodes and choose" if episodes else "say which: name episodes, or choose"
        raise UsageError(f"{'you cannot ' if episodes else ''}{said} them by options such as --outcome aborted")
    folder = RunFolder.open(find_run(run, runs_dir))
    folder.lock()  # before looking, so that what is asked about is what is deleted
    log, spool = EpisodeLog(folder.episodes), Spool(folder.spool)
    if episodes:
        ids = list(dict.fromkeys(find_episode(log, text, folder.path) for text in episodes))
    else:
        selection = Selection(log, LabelStore(folder.labels), wanted)
        ids = [found.info.id for found in selection]
        for problem in selection.problems:
            say(f"left alone, because it is damaged: {problem}")
    if not ids:
        say(f"no episode in {folder.path} is one of those you chose: nothing to delete")
        return
    num_bytes = sum(_size(folder.episodes / episode_id) for episode_id in ids)
    if not yes:
        _ask(ids, num_bytes, folder)
    removed = 0
    try:
        quiet = not console.is_terminal
        for episode_id in track(ids, description="deleting", console=console, transient=True, disable=quiet):
            spool.acknowledge(episode_id)  # first: what a crash has left there would come back
            log.remove(episode_id)
            removed += 1
    finally:
        if removed:
            folder.event("episodes removed", ids=ids[:removed])
    say(f"{_count(removed)} removed from {folder.path}, {_bytes(num_bytes)} freed")


def _ask(ids: list[str], num_bytes: int, folder: RunFolder) -> None:
    what = f"{_count(len(ids))} ({_bytes(num_bytes)}) of {folder.path}"
    if not sys.stdin.isatty():
        raise UsageError(f"this would delete {what}: nobody is here to be asked, so add --yes if you mean it")
    for episode_id in ids[:5]:
        say(f"  {episode_id}")
    if len(ids) > 5:
        say(f"  and {len(ids) - 5} more")
    typer.confirm(f"Delete {what} for good?", abort=True)


def _size(folder: Path) -> int:
    """What is really there: a damaged episode may not know."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _count(number: int) -> str:
    return f"{number} episode{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
