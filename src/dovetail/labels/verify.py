"""Find damaged lines in a run's labels and repair the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.disk import MAX_JSON_BYTES, MissingError, fsync_folder, open_file, writer
from dovetail.core.errors import StoreError
from dovetail.labels._label_file import (
    FILE,
    MARK,
    before_hole,
    head,
    is_valid,
    read_committed_size,
    salvage,
    write_committed_size,
)

__all__ = ["LabelFinding", "repair_labels", "verify_labels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFinding:
    """One problem. `path`, `line` and `problem` form a sentence."""

    path: Path
    line: int | None  # counted from 1; None: the file as a whole
    problem: str
    recoverable: str


def verify_labels(folder: Path | str) -> list[LabelFinding]:
    """Check all lines. An incomplete last line, which a crash may leave, is not damage."""
    folder = Path(folder)
    path = folder / FILE
    findings: list[LabelFinding] = []
    committed = 0
    try:
        committed = read_committed_size(folder)  # before the file, which may grow meanwhile
    except StoreError:
        findings.append(_file_finding(folder / MARK, "is damaged", "everything: the size is counted again"))
    try:
        num_bytes, place = path.stat().st_size, 0
        for number, (body, ended) in enumerate(_lines(path), start=1):
            whole = None if ended else before_hole(body)
            is_hole = whole is not None and place + len(whole) >= committed
            problem = None if is_hole else _problem(body, ended=ended)
            place += len(body) + ended
            if problem:
                findings.append(LabelFinding(path=path, line=number, problem=problem[0], recoverable=problem[1]))
    except (FileNotFoundError, MissingError):
        if committed:
            findings.append(_file_finding(path, "is missing", "nothing: label the episodes again"))
        return findings
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if num_bytes < committed:
        problem_text = f"has lost {committed - num_bytes} bytes at its end"
        findings.append(_file_finding(path, problem_text, "all intact lines before them"))
    return findings


def repair_labels(folder: Path | str) -> Path | None:
    """Keep every intact line, and the damaged file under another name; returns that name if the file changed."""
    folder = Path(folder)
    path = folder / FILE
    with writer(folder) as temporary:
        if not verify_labels(folder):
            return None
        staged, end = temporary / FILE, 0
        changed = False
        with staged.open("wb") as file:
            for body, ended in _lines(path) if path.exists() else ():
                kept = [body] if is_valid(body) else salvage(body)
                changed |= kept != [body] or not ended
                for line in kept:
                    file.write(line + b"\n")
            end = file.tell()
            file.flush()
            os.fsync(file.fileno())
        # The size first: a crash between the two leaves a damaged file, not one that seems truncated.
        write_committed_size(folder, max(0, end - 1), temporary=temporary)
        fsync_folder(folder)
        if not changed:
            return None
        aside = _unused(folder)
        os.link(path, aside)
        os.replace(staged, path)
        fsync_folder(folder)
        return aside


def _problem(body: bytes, *, ended: bool) -> tuple[str, str] | None:
    """Return the problem of a line and what can be recovered from it."""
    if not body or is_valid(body):
        return None
    intact = salvage(body)
    if intact:
        episodes = ", ".join(head(line).episode_id[:120] for line in intact[:20])
        return "has a damaged end", f"the labels of {episodes}"
    return ("is damaged", "all other lines, but nothing of this one") if ended else None


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    with open_file(path) as file:
        while line := file.readline(MAX_JSON_BYTES + 1):
            yield line.removesuffix(b"\n"), line.endswith(b"\n")


def _file_finding(path: Path, problem: str, recoverable: str) -> LabelFinding:
    return LabelFinding(path=path, line=None, problem=problem, recoverable=recoverable)


def _unused(folder: Path) -> Path:
    number = 1
    while (path := folder / f"labels.damaged-{number}.jsonl").exists():
        number += 1
    return path
