"""Reading a whole run for damage: every file that has a checksum, and what to do about each that is not as written."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import Progress
from rich.text import Text

from dovetail.cli._runs import find_run
from dovetail.cli._terminal import console, say
from dovetail.config.load import load_saved
from dovetail.core.disk import MissingError, load_json, read_file
from dovetail.core.errors import CheckpointError, DovetailError, PluginError, RunFolderError, StoreError
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.verify import Finding, repair, verify_log, verify_spool
from dovetail.labels.verify import repair_labels, verify_labels
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.weights.store import DiskWeightStore

__all__ = ["verify"]

_INTERRUPTED = "was interrupted"  # an episode in the spool that nobody has damaged: the next run takes it over


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """What is wrong with what, what is left of it, and how to mend it, or who can."""

    what: str
    left: str
    advice: str
    mend: Callable[[], object] | None = None
    lost: bool = False  # mending it means to do without
    harmless: bool = False  # worth a line, but not damaged


def verify(run: str, *, repair: bool, runs_dir: Path) -> int:
    path = _find(run, runs_dir)
    with _alone_in(path) if repair else nullcontext():
        books = _Books(path, mending=repair)
        num_episodes = len(EpisodeLog(path / "episodes").ids())
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("reading", total=num_episodes)
            read: set[str] = set()
            for finding in verify_log(path / "episodes"):
                read.add(finding.episode_id)
                progress.update(task, completed=len(read))
                if not finding.whole:
                    books.note(_of_log(path / "episodes", finding), episode_id=finding.episode_id)
            for problem in _elsewhere(path):
                books.note(problem)
    say(books.summary(num_episodes))
    return 1 if books.num_bad else 0


class _Books:
    """Prints each problem as it comes, mends it if that was asked for, and counts."""

    def __init__(self, path: Path, *, mending: bool) -> None:
        self._path = path
        self._mending = mending
        self._episodes: set[str] = set()  # with damage
        self._num_elsewhere = 0
        self._num_mended = 0
        self._num_lost = 0
        self.num_left = 0

    @property
    def num_bad(self) -> int:
        return self.num_left + self._num_lost

    def note(self, problem: _Problem, *, episode_id: str = "") -> None:
        mended, done = self._mend(problem)
        if not problem.harmless:
            self._episodes |= {episode_id} - {""}
            self._num_elsewhere += not episode_id
            self._num_mended += mended and not problem.lost
            self._num_lost += mended and problem.lost
            self.num_left += not mended
        style = "yellow" if mended or problem.harmless else "red"
        console.print(Text(problem.what, style=style), soft_wrap=True)
        for text in (f"left: {problem.left}" if problem.left else "", done):
            if text:
                console.print(Text(f"  {text}", style="bright_black"), soft_wrap=True)

    def _mend(self, problem: _Problem) -> tuple[bool, str]:
        """Whether it is as good as new now; and what was done, or has to be."""
        if problem.mend is None:
            return False, problem.advice
        if not self._mending:
            what = "does without it" if problem.lost else "mends it"
            return False, f"`dovetail episodes verify {self._path} --repair` {what}"
        try:
            kept = problem.mend()
        except DovetailError as error:
            return False, f"it could not be repaired: {error}"
        if problem.lost:
            return True, "lost, and struck off the list"
        return True, f"repaired; what was there is kept as {kept}" if isinstance(kept, Path) else "repaired"

    def summary(self, num_episodes: int) -> str:
        parts = [f"{num_episodes} episodes", f"{len(self._episodes) or 'none'} damaged"]
        if self._num_elsewhere:
            parts.append(f"{self._num_elsewhere} problem{'s' * (self._num_elsewhere > 1)} elsewhere")
        if self._episodes or self._num_elsewhere:
            lost = f"{self._num_lost} lost, " if self._num_lost else ""
            parts.append(f"{self._num_mended} repaired, {lost}{self.num_left} left")
        return f"{', '.join(parts)}: {self._path}"


def _of_log(folder: Path, finding: Finding) -> _Problem:
    return _Problem(
        what=f"{finding.path} {finding.problem}",
        left=finding.recoverable,
        advice=f"`dovetail episodes rm {folder.parent} {finding.episode_id}` deletes it"
        if finding.episode_id
        else "",
        mend=partial(repair, folder, finding) if finding.repairable else None,
        lost=finding.lost,
    )


def _elsewhere(path: Path) -> Iterator[_Problem]:
    yield from _spool(path / "spool")
    yield from _labels(path / "labels")
    yield from _weights(path / "weights")
    yield from _checkpoints(path / "checkpoints")
    yield from _config(path)
    for name in sorted((path / "evaluations").glob("*.json")):
        yield from _small_file(name)
    yield from _small_file(path / "progress.json")


def _spool(folder: Path) -> Iterator[_Problem]:
    for finding in verify_spool(folder):
        if not finding.whole:
            yield _Problem(
                what=f"{finding.path} {finding.problem}",
                left=finding.recoverable,
                advice=f"`dovetail run --resume {folder.parent}` takes over what is left",
                mend=partial(repair, folder, finding) if finding.repairable else None,
                harmless=finding.problem.startswith(_INTERRUPTED),
            )


def _labels(folder: Path) -> Iterator[_Problem]:
    for finding in verify_labels(folder):
        line = f" line {finding.line}" if finding.line else ""
        yield _Problem(
            what=f"{finding.path}{line} {finding.problem}",
            left=finding.recoverable,
            advice="",
            mend=partial(repair_labels, folder),  # one call mends all; the next has nothing to do
        )


def _weights(folder: Path) -> Iterator[_Problem]:
    store = DiskWeightStore(folder)
    broken: dict[int, str] = {}
    for version in store.versions():
        try:
            store.load(version)
        except StoreError as error:
            if version in store.versions():  # not pruned meanwhile by a run that is going on
                broken[version] = str(error)
    whole = ", ".join(str(version) for version in store.versions() if version not in broken)
    for version, problem in broken.items():
        yield _Problem(
            what=problem,
            left=f"version {version} of the weights is lost; whole: {whole or 'none'}",
            advice=f"delete {folder / f'v{version:08d}.json'}, unless you have a copy of what is damaged",
        )
    try:
        store.latest(newer_than=max(store.versions(), default=0))  # only looks whether one is pinned
    except StoreError as error:
        if str(error) not in broken.values():
            yield _Problem(
                what=str(error),
                left="all weights; only which version was pinned is lost",
                advice=f"delete {folder / 'pin.json'}, and pin again if need be",
            )


def _checkpoints(folder: Path) -> Iterator[_Problem]:
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            try:
                load_checkpoint(each)
            except CheckpointError:
                load_checkpoint(each)  # a run that is going on may have replaced it while we read
        except CheckpointError as error:
            yield _Problem(
                what=str(error),
                left="the episodes, labels and weights do not need it",
                advice=f"delete {each}: an unfinished run, resumed, then learns anew from its episodes",
            )


def _config(path: Path) -> Iterator[_Problem]:
    try:
        load_saved(path)
    except PluginError:
        pass  # it is as it was written; somebody's plugin is not installed here
    except DovetailError as error:
        yield _Problem(
            what=str(error),
            left="everything but the settings: `episodes ls` and `episodes show` work without",
            advice=f"put back a copy of {path / 'config.yaml'}, unless another version of Dovetail wrote it",
        )


def _small_file(path: Path) -> Iterator[_Problem]:
    try:
        load_json(read_file(path), name=str(path), indent=2)  # as `RunFolder.write_json` writes them
    except MissingError:
        return
    except StoreError as error:
        yield _Problem(what=str(error), left="", advice="delete it, and it is made anew")


def _find(run: str, runs_dir: Path) -> Path:
    """A run; also one that has lost its config, which is how others tell one."""
    try:
        return find_run(run, runs_dir)
    except RunFolderError:
        for path in (runs_dir / run, Path(run)):
            if (path / "episodes").is_dir():
                return path
        raise


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """The lock of `RunFolder`, for a run whose config may be damaged."""
    try:
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise RunFolderError(f"cannot write to run folder {path}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(f"another process is working in run folder {path}: repair it later") from error
        yield
