"""`dovetail stop` and `dovetail acknowledge`. It imports almost nothing: an emergency stop must not wait for imports."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.core.errors import UsageError, did_you_mean
from dovetail.live.run_stop import STOP_JSON, NotRunning, RunStop

__all__ = ["acknowledge", "parse_stop", "stop"]

CONFIRM_S = 1.0  # after this time an arm counts as not stopped
_POLL_S = 0.002
_CONFIG = "config.yaml"


def parse_stop(arguments: Sequence[str], *, runs_dir: Path) -> tuple[str, str, Path] | None:
    """Run, arm and folder of all runs. None for anything unusual: then the full command line answers."""
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--runs-dir" and rest:
            runs_dir = Path(rest.pop(0))
        elif word.startswith("--runs-dir="):
            runs_dir = Path(word.partition("=")[2])
        elif word.startswith("-"):
            return None
        else:
            words.append(word)
    if not 1 <= len(words) <= 2:
        return None
    return words[0], words[1] if len(words) == 2 else "", runs_dir


def stop(run: str, arm: str, runs_dir: Path) -> int:
    """Press the emergency stop, and report which arms have confirmed it. Returns the exit code."""
    with RunStop.attach(_folder(run, runs_dir)) as pressed:
        if arm and arm not in pressed.arms:
            known = ", ".join(pressed.arms) or "no arm yet"
            _say(f"{run} has no arm '{arm}' (it has {known}): stopping all arms")
            arm = ""
        place = pressed.press("dovetail stop", arm=arm)
        pressed_ns = time.monotonic_ns()
        waiting = [arm] if arm else list(pressed.arms)
        until_s = time.monotonic() + CONFIRM_S
        while waiting and time.monotonic() < until_s:
            for name in list(waiting):
                if (confirmed_ns := pressed.confirmed_ns(name, after=place)) is not None:
                    waiting.remove(name)
                    _say(f"{name} has stopped, after {max(0, confirmed_ns - pressed_ns) / 1e6:.0f} ms")
            time.sleep(_POLL_S)
        if not pressed.arms:
            _say("no arm has started yet: none will move before `dovetail acknowledge`")
    for name in waiting:
        sys.stderr.write(
            f"error: {name} has not confirmed the stop within {CONFIRM_S:g} s. Press the robot's own emergency stop\n"
        )
    if waiting:
        return 1
    _say(f"release: dovetail acknowledge {run}{f' {arm}' if arm else ''}")
    return 0


def acknowledge(run: str, arm: str, runs_dir: Path) -> int:
    """Release the arms, and let them continue after a fault."""
    with _attached(run, arm, runs_dir) as found:
        source = found.source
        found.acknowledge(arm=arm, source="dovetail acknowledge")
        if source:
            _say(f"released from the emergency stop ({source})")
        _say(f"acknowledged: {arm or 'all arms that have stopped'} may continue")
        if found.emergency and not arm:
            raise UsageError(f"the emergency stop was pressed again meanwhile ({found.source}). Acknowledge again")
    return 0


def _attached(run: str, arm: str, runs_dir: Path) -> RunStop:
    found = RunStop.attach(_folder(run, runs_dir))
    if arm and arm not in found.arms:
        arms = found.arms
        found.close()
        if not arms:
            raise UsageError(f"no arm of {run} has started yet. Leave out the name to stop all arms")
        raise UsageError(f"{run} has no arm '{arm}'. It has {', '.join(arms)}.{did_you_mean(arm, arms)}")
    return found


def _folder(run: str, runs_dir: Path) -> Path:
    """As `api.names.find_run`, which takes longer to import. The folder of an arm on another machine counts, too."""
    by_name, by_path = runs_dir / run, Path(run)
    for path in (by_name, by_path) if len(by_path.parts) == 1 else (by_path,):
        if (path / STOP_JSON).is_file() or (path / _CONFIG).is_file():
            return path
    active = sorted(file.parent.name for file in runs_dir.glob(f"*/{STOP_JSON}"))
    raise NotRunning(f"no run named '{run}' in {runs_dir}. Active: {', '.join(active) or 'none'}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
