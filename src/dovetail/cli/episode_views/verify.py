"""`dovetail episodes verify`: print each problem, repair it if requested, and count."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from rich.progress import Progress
from rich.text import Text

from dovetail.api.names import find_run
from dovetail.cli._terminal import console, say
from dovetail.core.errors import DovetailError, RunFolderError
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.contents import check_run_folder
from dovetail.runs.verify import Problem, locked_for_repair, verify_episodes, verify_other_files

__all__ = ["verify"]


def verify(run: str, *, repair: bool, runs_dir: Path) -> int:
    path = _find(run, runs_dir)
    with locked_for_repair(path) if repair else nullcontext():
        summary = _Summary(path, repairs=repair)
        num_episodes = len(EpisodeLog(path / "episodes").ids())
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("reading", total=num_episodes)
            read: set[str] = set()

            def on_episode(episode_id: str) -> None:
                read.add(episode_id)
                progress.update(task, completed=len(read))

            for problem in verify_episodes(path, on_episode):
                summary.add(problem)
            for problem in verify_other_files(path):
                summary.add(problem)
    say(summary.line(num_episodes))
    return 1 if summary.num_left + summary.num_lost else 0


class _Summary:
    """Prints each problem, repairs it if requested, and counts."""

    def __init__(self, path: Path, *, repairs: bool) -> None:
        self._path = path
        self._repairs = repairs
        self._damaged_episodes: set[str] = set()
        self._num_elsewhere = 0
        self._num_repaired = 0
        self.num_lost = 0
        self.num_left = 0

    def add(self, problem: Problem) -> None:
        repaired, result = self._repair(problem)
        if not problem.harmless:
            self._damaged_episodes |= {problem.episode_id} - {""}
            self._num_elsewhere += not problem.episode_id
            self._num_repaired += repaired and not problem.lost
            self.num_lost += repaired and problem.lost
            self.num_left += not repaired
        style = "yellow" if repaired or problem.harmless else "red"
        console.print(Text(problem.what, style=style), soft_wrap=True)
        for text in (f"left: {problem.left}" if problem.left else "", result):
            if text:
                console.print(Text(f"  {text}", style="bright_black"), soft_wrap=True)

    def _repair(self, problem: Problem) -> tuple[bool, str]:
        """Whether it is repaired; and what was done, or what to do."""
        if problem.repair is None:
            return False, problem.advice
        if not self._repairs:
            what = "removes it from the list" if problem.lost else "repairs it"
            return False, f"`dovetail episodes verify {self._path} --repair` {what}"
        try:
            backup = problem.repair()
        except DovetailError as error:
            return False, f"it could not be repaired: {error}"
        if problem.lost:
            return True, "lost, and removed from the list"
        return True, f"repaired; the damaged file is kept as {backup}" if isinstance(backup, Path) else "repaired"

    def line(self, num_episodes: int) -> str:
        parts = [f"{num_episodes} episodes", f"{len(self._damaged_episodes) or 'none'} damaged"]
        if self._num_elsewhere:
            parts.append(f"{self._num_elsewhere} problem{'s' * (self._num_elsewhere > 1)} elsewhere")
        if self._damaged_episodes or self._num_elsewhere:
            lost = f"{self.num_lost} lost, " if self.num_lost else ""
            parts.append(f"{self._num_repaired} repaired, {lost}{self.num_left} left")
        return f"{', '.join(parts)}: {self._path}"


def _find(run: str, runs_dir: Path) -> Path:
    """A run, also one without its config.yaml."""
    try:
        return find_run(run, runs_dir)
    except RunFolderError:
        for path in (runs_dir / run, Path(run)):
            if (path / "episodes").is_dir():
                check_run_folder(path)
                return path
        raise
