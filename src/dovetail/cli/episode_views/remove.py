"""`dovetail episodes rm`: delete the named or chosen episodes, after a question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from rich.progress import track

from dovetail.api.episodes import Episodes, parse_filter
from dovetail.api.names import find_run
from dovetail.cli._terminal import console, say
from dovetail.core.errors import UsageError
from dovetail.episodes.spool import Spool
from dovetail.runs.folder import RunFolder

__all__ = ["rm"]


def rm(run: str, names: list[str], filters: dict[str, Any], *, yes: bool, runs_dir: Path) -> None:
    wanted = parse_filter(**filters)
    if names and not wanted.is_empty:
        raise UsageError("name episodes, or choose them by options such as --outcome aborted, but not both")
    if not names and wanted.is_empty:
        raise UsageError("name episodes, or choose them by options such as --outcome aborted")
    folder = RunFolder.open(find_run(run, runs_dir))
    folder.lock()  # first, so that the episodes in the question are those that are deleted
    episodes, spool = Episodes(folder.path, wanted), Spool(folder.spool)
    if names:
        ids = list(dict.fromkeys(episodes.find(text) for text in names))
    else:
        ids = [episode.id for episode in episodes]
        for problem in episodes.problems:
            say(f"not deleted, because it is damaged: {problem}")
    if not ids:
        say(f"no episode in {folder.path} matches: nothing to delete")
        return
    num_bytes = sum(_size(folder.episodes / episode_id) for episode_id in ids)
    if not yes:
        _ask(ids, num_bytes, folder)
    num_removed = 0
    try:
        quiet = not console.is_terminal
        for episode_id in track(ids, description="deleting", console=console, transient=True, disable=quiet):
            spool.acknowledge(episode_id)  # first, so that a copy in the spool does not come back
            episodes.log.remove(episode_id)
            num_removed += 1
    finally:
        if num_removed:
            folder.event("episodes removed", ids=ids[:num_removed])
    say(f"{_count(num_removed)} removed from {folder.path}, {_bytes(num_bytes)} freed")


def _ask(ids: list[str], num_bytes: int, folder: RunFolder) -> None:
    what = f"{_count(len(ids))} ({_bytes(num_bytes)}) of {folder.path}"
    if not sys.stdin.isatty():
        raise UsageError(f"this would delete {what}, and there is no terminal to confirm it: add --yes")
    for episode_id in ids[:5]:
        say(f"  {episode_id}")
    if len(ids) > 5:
        say(f"  and {len(ids) - 5} more")
    typer.confirm(f"Delete {what} permanently?", abort=True)


def _size(folder: Path) -> int:
    """From the files, because the manifest may be damaged."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _count(number: int) -> str:
    return f"{number} episode{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
