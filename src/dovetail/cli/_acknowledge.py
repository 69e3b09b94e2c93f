"""`dovetail acknowledge`: leave a note for whoever drives the run, and wait until it is taken."""

from __future__ import annotations

import time
from pathlib import Path

from dovetail.cli._runs import find_run
from dovetail.cli._terminal import say
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.runs.acknowledgements import acknowledge as leave_note
from dovetail.runs.folder import RunFolder

__all__ = ["acknowledge"]

_TAKEN_S, _LOOK_S = 10.0, 0.05


def acknowledge(run: str, robot: str | None, *, runs_dir: Path) -> None:
    folder = RunFolder.open(find_run(run, runs_dir))
    if folder.config.runtime != "ray":
        raise UsageError(f"{folder.path.name} has runtime=inline: acknowledge its arm in its console")
    names = tuple(folder.config.cluster.named_robots())
    if robot is not None and robot not in names:
        raise UsageError(f"{folder.path.name} has no robot '{robot}'.{did_you_mean(robot, names)}")
    notes = [leave_note(folder.path, name) for name in (names if robot is None else [robot])]
    until_s = time.monotonic() + _TAKEN_S
    while any(note.exists() for note in notes):
        if time.monotonic() > until_s:
            for note in notes:
                note.unlink(missing_ok=True)
            raise UsageError(f"nobody heard it: {folder.path.name} is not running")
        time.sleep(_LOOK_S)
    say(f"told: {robot or 'all that have stopped'} may go on")
