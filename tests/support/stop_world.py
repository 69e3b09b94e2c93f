"""Runs with arms on the real clock, to be stopped from every source. Each arm has a journal of its own.

with stop_world(tmp_path, arms=("left", "right")) as run:
    run.start_moving()
    run.press()                             # dovetail stop
    run.check_stopped()
    run.release()
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dovetail.core.clock import NS_PER_S
from dovetail.live.run_stop import RunStop
from dovetail.testing.live import JournalNote, read_journal
from support.ray_world import World, eventually, world

__all__ = ["StopWorld", "stop_world"]

MAX_STOP_S = 2.0  # generous: the bench measures times


class StopWorld:
    """A World whose arms are stopped and released."""

    def __init__(self, run: World, arms: Sequence[str]) -> None:
        self.run, self.arms = run, tuple(arms)

    @property
    def path(self) -> Path:
        return self.run.path

    def journal(self, arm: str) -> Path:
        return self.run.folder / f"journal-{arm}"

    def notes(self, arm: str, since_ns: int = 0) -> list[JournalNote]:
        return [note for note in read_journal(self.journal(arm)) if note.time_ns >= since_ns]

    def start_moving(self, *overrides: str) -> None:
        """Start the run and wait until all arms move."""
        signs = str(self.run.signs)
        if self.arms == ("robot",):
            arms = [
                "runtime=inline",
                f"robot.journal={self.journal('robot')}",
                f'operator={{"type": "support.ray_plugins:PadOperator", "signs": "{signs}", "sign": "pad-robot"}}',
            ]
        else:
            robots = {
                arm: {
                    "robot": {"journal": str(self.journal(arm))},
                    "operator": {"type": "support.ray_plugins:PadOperator", "signs": signs, "sign": f"pad-{arm}"},
                }
                for arm in self.arms
            }
            arms = [f"cluster.robots={json.dumps(robots)}"]
        self.run.start(*arms, *overrides)
        self.wait_until_moving(0)

    def wait_until_moving(self, since_ns: int, *arms: str) -> None:
        for arm in arms or self.arms:
            self.run.wait_until(
                lambda arm=arm: sum(note.moves for note in self.notes(arm, since_ns)) > 3,
                within_s=120.0,
                what=f"{arm} moves",
            )

    def press(self, *arm: str) -> subprocess.CompletedProcess[str]:
        """`dovetail stop` in another process."""
        return self.command("stop", str(self.path), *arm)

    def wait_for_press(self, source: str) -> None:
        with self.stop() as stop:
            self.run.wait_until(lambda: stop.source == source, within_s=30.0, what=f"{source} was pressed")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dovetail.cli", *words],
            env=self.run.environment,
            cwd=self.run.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def check_stopped(self, *arms: str) -> None:
        """Each arm confirms the newest press, after a stop command, and no motion follows."""
        with self.stop() as stop:
            for arm in arms or self.arms:
                confirmed_ns = eventually(
                    lambda arm=arm: stop.emergency and stop.confirmed_ns(arm, after=stop.last_press(arm)),
                    within_s=MAX_STOP_S,
                    what=f"{arm} has confirmed the stop",
                    details=lambda: self.run.events()[-3:],
                )
                since_ns = stop.pressed_ns - NS_PER_S // 2  # a relayed press gets its time when it arrives
                assert any(note.what == "stop" for note in self.notes(arm, since_ns)), arm
                time.sleep(0.3)
                assert [note for note in self.notes(arm, confirmed_ns) if note.moves] == [], arm

    def release(self, *arm: str) -> None:
        """`dovetail acknowledge`, and wait until the arms move again."""
        now_ns = time.monotonic_ns()
        done = self.command("acknowledge", str(self.path), *arm)
        assert done.returncode == 0, done.stderr
        self.wait_until_moving(now_ns, *arm)

    def stop(self) -> RunStop:
        return RunStop.attach(self.path)


@contextmanager
def stop_world(folder: Path, *, arms: Sequence[str]) -> Iterator[StopWorld]:
    with world(folder) as run:
        yield StopWorld(run, arms)
