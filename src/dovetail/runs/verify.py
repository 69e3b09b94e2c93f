"""Check a whole run for damage: every file with a checksum, and how to repair each damaged one."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dovetail.config.changes import CHANGES_NAME
from dovetail.config.load import load_saved
from dovetail.core.disk import MissingError, load_json, open_lock, read_file
from dovetail.core.errors import CheckpointError, DovetailError, PluginError, RunFolderError, StoreError
from dovetail.episodes.verify import Finding, remove_lost, repair, verify_log, verify_spool
from dovetail.labels.verify import repair_labels, verify_labels
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.weights.store import DiskWeightStore

__all__ = ["Problem", "locked_for_repair", "verify_episodes", "verify_other_files"]

_INTERRUPTED = "was interrupted"  # an undamaged episode in the spool, which the next run recovers


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A damaged file: what is wrong, what is left of it, and how to repair it."""

    what: str
    left: str
    advice: str
    repair: Callable[[], object] | None = None  # returns the path of a backup, if it made one
    lost: bool = False  # the repair discards the content
    harmless: bool = False  # not damaged
    episode_id: str = ""


def verify_episodes(path: Path, on_episode: Callable[[str], None] = lambda episode_id: None) -> Iterator[Problem]:
    folder = path / "episodes"
    lost: list[Finding] = []
    for finding in verify_log(folder):
        on_episode(finding.episode_id)
        if finding.lost:
            lost.append(finding)
        elif not finding.is_intact:
            yield _episode_problem(folder, finding, partial(repair, folder, finding))
    remove = _once(partial(remove_lost, folder, [finding.episode_id for finding in lost]))
    for finding in lost:
        yield _episode_problem(folder, finding, remove)


def _once(repair_all: Callable[[], object]) -> Callable[[], object]:
    """A repair of several problems. The first call does it; later calls return its result or raise its error."""
    done: list[object] = []

    def repair_once() -> object:
        if not done:
            try:
                done.append(repair_all())
            except DovetailError as error:
                done.append(error)
        if isinstance(done[0], DovetailError):
            raise done[0]
        return done[0]

    return repair_once


def _episode_problem(folder: Path, finding: Finding, repair_it: Callable[[], object]) -> Problem:
    advice = (
        f"`dovetail episodes rm {folder.parent} {finding.episode_id}` deletes it" if finding.episode_id else ""
    )
    return Problem(
        what=f"{finding.path} {finding.problem}",
        left=finding.recoverable,
        advice=advice,
        repair=repair_it if finding.repairable else None,
        lost=finding.lost,
        episode_id=finding.episode_id,
    )


def verify_other_files(path: Path) -> Iterator[Problem]:
    yield from _spool(path / "spool")
    yield from _labels(path / "labels")
    yield from _weights(path / "weights")
    yield from _checkpoints(path / "checkpoints")
    yield from _config(path)
    for name in sorted((path / "evaluations").glob("*.json")):
        yield from _small_file(name)
    yield from _small_file(path / "progress.json")


def _spool(folder: Path) -> Iterator[Problem]:
    for finding in verify_spool(folder):
        if not finding.is_intact:
            yield Problem(
                what=f"{finding.path} {finding.problem}",
                left=finding.recoverable,
                advice=f"`dovetail run --resume {folder.parent}` recovers what is left",
                repair=partial(repair, folder, finding) if finding.repairable else None,
                harmless=finding.problem.startswith(_INTERRUPTED),
            )


def _labels(folder: Path) -> Iterator[Problem]:
    repair_all = _once(partial(repair_labels, folder))
    for finding in verify_labels(folder):
        line = f" line {finding.line}" if finding.line else ""
        yield Problem(
            what=f"{finding.path}{line} {finding.problem}",
            left=finding.recoverable,
            advice="",
            repair=repair_all,
        )


def _weights(folder: Path) -> Iterator[Problem]:
    store = DiskWeightStore(folder)
    broken: dict[int, str] = {}
    for version in store.versions():
        try:
            store.load(version)
        except StoreError as error:
            if version in store.versions():  # a running run may have deleted it meanwhile
                broken[version] = str(error)
    whole = ", ".join(str(version) for version in store.versions() if version not in broken)
    for version, problem in broken.items():
        yield Problem(
            what=problem,
            left=f"version {version} of the weights is lost; whole: {whole or 'none'}",
            advice=f"delete {folder / f'v{version:08d}.json'}, unless you have a copy of what is damaged",
        )
    try:
        store.latest(newer_than=max(store.versions(), default=0))  # reads only the pin
    except StoreError as error:
        if str(error) not in broken.values():
            yield Problem(
                what=str(error),
                left="all weights; only the pinned version is lost",
                advice=f"delete {folder / 'pin.json'}, and pin again if needed",
            )


def _checkpoints(folder: Path) -> Iterator[Problem]:
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            try:
                load_checkpoint(each)
            except CheckpointError:
                load_checkpoint(each)  # a running run may have replaced it meanwhile
        except CheckpointError as error:
            yield Problem(
                what=str(error),
                left="the episodes, labels and weights do not need it",
                advice=f"delete {each}: a resumed run then learns again from its episodes",
            )


def _config(path: Path) -> Iterator[Problem]:
    try:
        load_saved(path, quiet=True)
    except PluginError:
        pass  # undamaged, but one of its plugins is not installed here
    except DovetailError as error:
        yield Problem(
            what=str(error),
            left="everything but the settings: `episodes ls` and `episodes show` work without them",
            advice=""
            if CHANGES_NAME in str(error)
            else f"restore {path / 'config.yaml'} from a copy, unless a newer version of Dovetail wrote it",
        )


def _small_file(path: Path) -> Iterator[Problem]:
    try:
        load_json(read_file(path), name=str(path), indent=2)  # as `RunFolder.write_json` writes them
    except MissingError:
        return
    except StoreError as error:
        yield Problem(what=str(error), left="", advice="delete it; the run writes it again")


@contextmanager
def locked_for_repair(path: Path) -> Iterator[None]:
    """Take the lock of a run folder whose config may be damaged."""
    try:
        lock = open_lock(path / ".lock")
    except OSError as error:
        raise RunFolderError(f"cannot write to run folder {path}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(f"another process is working in run folder {path}: repair it later") from error
        yield
