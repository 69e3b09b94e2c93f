"""Damage in a run's labels: every line of it found, and all others saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.disk import fsync_folder, writer
from dovetail.core.errors import StoreError
from dovetail.labels._lines import FILE, MARK, head, is_intact, read_mark, salvage, write_mark

__all__ = ["LabelFinding", "repair_labels", "verify_labels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFinding:
    """One thing that is not as it was written. `path`, `line` and `problem` make a sentence."""

    path: Path
    line: int | None  # counted from 1; None: the file as a whole
    problem: str
    recoverable: str


def verify_labels(folder: Path | str) -> list[LabelFinding]:
    """Read all; what a crash left unfinished at the end was never acknowledged and is no damage."""
    folder = Path(folder)
    path = folder / FILE
    findings: list[LabelFinding] = []
    committed = 0
    try:
        committed = read_mark(folder)  # before the file, to which somebody may be adding
    except StoreError:
        findings.append(_whole(folder / MARK, "is not what was written there", "all of it: it is counted anew"))
    try:
        num_bytes = path.stat().st_size
        for number, (body, ended) in enumerate(_lines(path), start=1):
            problem = _problem(body, ended=ended)
            if problem:
                findings.append(LabelFinding(path=path, line=number, problem=problem[0], recoverable=problem[1]))
    except FileNotFoundError:
        if committed:
            findings.append(_whole(path, "is gone", "nothing: label the episodes again"))
        return findings
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if num_bytes < committed:
        problem_text = f"has lost {committed - num_bytes} bytes at its end"
        findings.append(_whole(path, problem_text, "all whole lines before them"))
    return findings


def repair_labels(folder: Path | str) -> Path | None:
    """Keep every whole line, in order, and the damaged file beside them; returns its name, if there was a need."""
    folder = Path(folder)
    path = folder / FILE
    with writer(folder) as temporary:
        if not verify_labels(folder):
            return None
        staged, end = temporary / FILE, 0
        changed = False
        with staged.open("wb") as file:
            for body, ended in _lines(path) if path.exists() else ():
                kept = [body] if is_intact(body) else salvage(body)
                changed |= kept != [body] or not ended
                for line in kept:
                    file.write(line + b"\n")
            end = file.tell()
            file.flush()
            os.fsync(file.fileno())
        # The mark first: what a crash leaves between the two is a damaged file, and not one that seems cut short.
        write_mark(folder, max(0, end - 1), temporary=temporary)
        if not changed:
            return None
        aside = _unused(folder)
        os.link(path, aside)
        os.replace(staged, path)
        fsync_folder(folder)
        return aside


def _problem(body: bytes, *, ended: bool) -> tuple[str, str] | None:
    """What is wrong with a line, and what of it can be had back."""
    if not body or is_intact(body):
        return None
    whole = salvage(body)
    if whole:
        return (
            "does not end where its labels do",
            f"the labels of {', '.join(head(line).episode_id for line in whole)}",
        )
    return ("is not what was written there", "nothing of it, but all other lines") if ended else None


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    with path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n"), line.endswith(b"\n")


def _whole(path: Path, problem: str, recoverable: str) -> LabelFinding:
    return LabelFinding(path=path, line=None, problem=problem, recoverable=recoverable)


def _unused(folder: Path) -> Path:
    number = 1
    while (path := folder / f"labels.damaged-{number}.jsonl").exists():
        number += 1
    return path
