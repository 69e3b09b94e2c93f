"""Find damage in a log or a spool, describe what can be recovered, and repair it where possible.

    for finding in verify_log(folder):
        if not finding.is_intact:
            ...
            if finding.repairable:
                repair(folder, finding)

Every byte of every file is read. A repaired file must match the checksum made when the episode was written, and it
replaces the damaged one by an atomic rename.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.disk import (
    TEMPORARY,
    MissingError,
    fsync_folder,
    open_file,
    open_for_update,
    read_file,
    without_writer,
    write_file,
    writer,
)
from dovetail.core.errors import StoreError, UsageError
from dovetail.episodes import _damage, _journal, _order
from dovetail.episodes._journal import SUFFIX, Kind, is_recording
from dovetail.episodes._manifest import MANIFEST, STEPS, pack_manifest, read_manifest, unpack_manifest
from dovetail.episodes._order import ORDER
from dovetail.episodes.ids import is_episode_id
from dovetail.episodes.spool import DAMAGED

__all__ = ["Finding", "remove_lost", "repair", "verify_log", "verify_spool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem; or, without a path, an intact episode.

    `path` and `problem` form a sentence: `.../steps.parquet` `is missing`.
    """

    episode_id: str  # empty: belongs to no episode
    path: Path | None = None
    problem: str = ""
    recoverable: str = ""  # what can still be read
    repairable: bool = False
    lost: bool = False  # the repair gives up the lost data

    @property
    def is_intact(self) -> bool:
        return self.path is None


def verify_log(folder: Path | str) -> Iterator[Finding]:
    """Check every file of a log; yields at least one finding per episode, then those of the log itself."""
    folder = Path(folder)
    order = _order.read(folder)
    for episode_id in order.sort(_order.list_episodes(folder)):
        findings = _check_episode(folder / episode_id)
        if (folder / episode_id).is_dir():  # it may have been removed meanwhile
            yield from findings or [Finding(episode_id=episode_id)]
    yield from _check_order(folder)
    known = {TEMPORARY, ".lock", ORDER}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in known and not (is_episode_id(path.name) and path.is_dir() and not path.is_symlink()):
            yield _foreign("", path, "log")


def verify_spool(folder: Path | str) -> Iterator[Finding]:
    """Check every journal of a spool. Journals being written count as intact."""
    folder = Path(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        episode_id = path.name.removesuffix(SUFFIX)
        if path.suffix == SUFFIX and is_episode_id(episode_id):
            with contextlib.suppress(MissingError):  # acknowledged meanwhile
                yield _check_journal(path, episode_id)
        elif path.name.endswith(SUFFIX + DAMAGED):
            left = "the steps before the damage are in the log; delete this file when you no longer need it"
            problem = "is a damaged journal that was set aside"
            yield Finding(episode_id="", path=path, problem=problem, recoverable=left)
        elif not path.name.startswith("."):
            yield _foreign("", path, "spool")


def repair(folder: Path | str, finding: Finding) -> None:
    """Repair a finding that is `repairable`. It is checked again first, so an outdated finding does no harm."""
    folder = Path(folder)
    if finding.path is None or not finding.repairable:
        raise UsageError(f"cannot repair {finding.path or finding.episode_id}; recoverable: {finding.recoverable}")
    name = finding.path.name
    if finding.path.suffix == SUFFIX:
        _repair_journal(finding.path)
        return
    if finding.lost:
        remove_lost(folder, [finding.episode_id])
        return
    with writer(folder) as temporary:
        if name == ORDER:
            data: bytes | None = _rebuild_order(folder)
        elif finding.path not in (found.path for found in _check_episode(finding.path.parent)):
            return
        elif name == MANIFEST:
            data = pack_manifest(_damage.manifest_from_steps(finding.path.parent))
        else:
            data = _damage.rebuild_file(finding.path.parent, name, read_manifest(finding.path.parent))
        if data is None:
            raise StoreError(f"{finding.path} can no longer be repaired. Verify it again.")
        write_file(temporary / name, data)
        os.replace(temporary / name, finding.path)
        fsync_folder(finding.path.parent)


def remove_lost(folder: Path | str, episode_ids: Iterable[str]) -> None:
    """Record lost episodes as removed, with one write for all of them. Those that are there again stay in the list."""
    folder = Path(folder)
    with writer(folder):
        numbers, there = _order.read(folder).numbers, set(_order.list_episodes(folder))
        lost = [episode_id for episode_id in episode_ids if episode_id in numbers and episode_id not in there]
        if lost:
            _order.append(folder, *(_order.line(numbers[name], name, removed=True) for name in lost))


def _check_episode(folder: Path) -> list[Finding]:
    """Return the problems of an episode's files."""
    path, episode_id = folder / MANIFEST, folder.name
    findings: list[Finding] = []
    try:
        unpack_manifest(read_file(path), name=str(path))
    except StoreError:
        problem = "is missing" if not path.exists() else "is damaged"
        try:
            manifest = _damage.manifest_from_steps(folder)
        except StoreError as reason:
            left = f"it could be rebuilt from {STEPS}, but {reason}; videos may still be played"
            return [Finding(episode_id=episode_id, path=path, problem=problem, recoverable=left)]
        left = f"everything: it can be rebuilt from {STEPS}"
        findings = [Finding(episode_id=episode_id, path=path, problem=problem, recoverable=left, repairable=True)]
    else:
        try:
            manifest = read_manifest(folder)
        except StoreError as error:
            problem = str(error).removeprefix(f"{folder} ")
            return [
                Finding(episode_id=episode_id, path=folder, problem=problem, recoverable="everything, by hand")
            ]
    return [*findings, *_check_files(folder, manifest)]


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    problems = {name: _damage.find_problem(folder / name, file) for name, file in manifest["files"].items()}
    bad = [name for name, problem in problems.items() if problem]
    for name in bad:
        repairable = _damage.rebuild_file(folder, name, manifest) is not None
        left = (
            f"everything: {name} can be written again"
            if repairable
            else _damage.describe_remains(folder, name, manifest, bad)
        )
        yield Finding(
            episode_id=folder.name,
            path=folder / name,
            problem=problems[name],
            recoverable=left,
            repairable=repairable,
        )
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in {MANIFEST, *manifest["files"]}:
            yield _foreign(folder.name, path, "episode")


def _foreign(episode_id: str, path: Path, what: str) -> Finding:
    return Finding(
        episode_id=episode_id,
        path=path,
        problem=f"is not part of the {what}",
        recoverable="everything: move it elsewhere by hand",
    )


def _check_order(folder: Path) -> list[Finding]:
    """Return the problems of `.order`. A commit in progress looks like one, so check again while no other writes."""
    findings = list(_differences(folder))
    if findings:
        with without_writer(folder):
            return list(_differences(folder))
    return findings


def _differences(folder: Path) -> Iterator[Finding]:
    path, order = folder / ORDER, _order.read(folder)
    there = set(_order.list_episodes(folder)) - order.removed
    problems = []
    if order.damaged:
        problems.append(f"has damaged lines: {', '.join(map(str, order.damaged[:5]))}")
    if order.torn:
        problems.append("ends in half a line")
    if missing := len(there - set(order.numbers)):
        problems.append(f"lacks {missing} of {len(there)} episodes" if path.exists() else "is missing")
    if problems:
        left = "everything: the order of commits can be rebuilt from the manifests"
        problem = "; ".join(problems)
        yield Finding(episode_id="", path=path, problem=problem, recoverable=left, repairable=True)
    for episode_id in sorted(set(order.numbers) - there):
        yield Finding(
            episode_id=episode_id,
            path=folder / episode_id,
            problem=f"is missing, but {ORDER} lists it",
            recoverable=f"nothing; commit it again from a copy, or repair {ORDER}, which removes it from the list",
            repairable=True,
            lost=True,
        )


def _rebuild_order(folder: Path) -> bytes:
    """Rebuild `.order` from its good lines, and from the manifests of episodes without a line."""
    order = _order.read(folder)
    numbers = dict(order.numbers)
    for episode_id in set(_order.list_episodes(folder)) - set(numbers) - order.removed:
        try:
            numbers[episode_id] = int(read_manifest(folder / episode_id)["number"])
        except StoreError:  # its manifest must be repaired first
            continue
    lines = [
        _order.line(number, name) for number, name in sorted((number, name) for name, number in numbers.items())
    ]
    return b"".join(lines + [_order.line(0, name, removed=True) for name in sorted(order.removed)])


def _check_journal(path: Path, episode_id: str) -> Finding:
    if is_recording(path):
        return Finding(episode_id=episode_id)
    end, kinds = 0, []
    with open_file(path) as file:
        for record in _journal.read(file):
            end = record.end
            kinds.append(record.kind)
        rest = _journal.remainder(file, end)
        try:
            num_steps = _journal.count_steps(file, name=str(path)) or 0
        except StoreError as error:
            left = f"nothing automatically; {rest.num_later} of its records are intact"
            problem = "has no start" if not kinds or kinds[0] is not Kind.START else "cannot be read"
            detail = "" if problem == "has no start" else f": {error}"
            return Finding(episode_id=episode_id, path=path, problem=problem + detail, recoverable=left)
    ended = kinds[-1] is Kind.END
    if ended and not rest.num_bytes:
        return Finding(episode_id=episode_id)
    left = (
        f"its first {num_steps} steps, as an aborted episode" if num_steps else "nothing: it has no complete step"
    )
    if ended:
        problem, left = f"has {rest.num_bytes} bytes after its end", "the whole episode"
    elif rest.torn:
        problem = f"ends in an incomplete record ({rest.num_bytes} bytes), as a crash leaves it"
    elif rest.num_bytes:
        problem = (
            f"is damaged after step {num_steps} ({rest.num_bytes} bytes with {rest.num_later} intact records)"
        )
    else:
        problem = "was interrupted: it has no end"
    return Finding(episode_id=episode_id, path=path, problem=problem, recoverable=left, repairable=rest.torn)


def _repair_journal(path: Path) -> None:
    """Remove an incomplete last record, which was never reported as durable."""
    with open_for_update(path) as file:
        if is_recording(path):
            raise UsageError(f"{path} is still being recorded; there is nothing to repair")
        records = list(_journal.read(file))
        end = records[-1].end if records else 0
        if _journal.remainder(file, end).torn:
            file.truncate(end)
            os.fsync(file.fileno())
