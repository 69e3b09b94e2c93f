"""A real-time arm with real processes that tests can kill.

`python live_host.py FOLDER [key=value ...]` is a supervisor that runs one episode.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail.config.load import load
from dovetail.core.types import Episode, EpisodeOrder, Purpose
from dovetail.episodes.ids import new_episode_id
from dovetail.rewards.early_success import SuccessDetection
from dovetail.robot_host.host import RobotHost
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.testing.fakes import FakeTask
from dovetail.testing.live import JournalNote, read_journal
from support import TESTS
from support.waiting import wait_until

__all__ = ["BrokenTask", "LiveHost", "MarkedProcesses", "live", "order", "processes"]

CONFIG = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 100000, tolerance: 1.0e-9}
robot: {type: "dovetail.testing.live:LiveArm", journal: "%s"}
policy: {type: "dovetail.testing.live:FaultyPolicy"}
actor: {type: naive, layout: processes, flush_every_s: 0.1, inference_timeout_s: 0.5, heartbeat_timeout_s: 0.5}
algorithm: {type: "dovetail.testing.fake_learning:FakeAlgorithm"}
"""


class BrokenTask(FakeTask):
    """Raises at the tenth step."""

    def judge(self, robot, observation, *, num_steps):
        if num_steps == 10:
            raise KeyError("no such pose")
        return super().judge(robot, observation, num_steps=num_steps)


def order(purpose: Purpose = Purpose.ONLINE, *, index: int = 0) -> EpisodeOrder:
    now_ns = time.time_ns()
    return EpisodeOrder(
        id=new_episode_id(unix_ns=now_ns, robot="live"),
        purpose=purpose,
        seed=0,
        index=index,
        config_hash="0" * 64,
        deterministic=False,
        robot_minutes=0.0,
        started_unix_ns=now_ns,
    )


class MarkedProcesses:
    """Processes that this test has started: they have a mark in their environment."""

    def __init__(self, mark: str) -> None:
        self._mark = f"LIVE_HOST={mark}".encode()

    def alive(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue  # ended meanwhile, or of another user
        return found


class LiveHost:
    """A robot host and its arm. `go()` runs an episode in a thread, `send_signal()` kills a process, `ended()` waits."""

    def __init__(
        self, folder: Path, *overrides: str, spool: bool = True, success_detection: SuccessDetection | None = None
    ) -> None:
        self.journal_path, self.spool = folder / "journal", folder / "spool" if spool else None
        path = folder / "live.yaml"
        path.write_text(CONFIG % self.journal_path)
        config = load([path], overrides)
        self.stop, self.weights = threading.Event(), folder / "weights"
        self.cell = build_workcell(task=config.task, robot=config.robot, safety=config.safety)
        self.host = RobotHost(
            config,
            workcell=self.cell,
            policy=config.policy.build(robot=self.cell.robot.spec, seed=0).spec,
            spool=self.spool,
            weights=self.weights,
            should_stop=self.stop.is_set,
            success_detection=success_detection,
        )
        self.episode: Episode | None = None
        self.error: Exception | None = None

    def go(self, *, until_moves: int = 15, purpose: Purpose = Purpose.ONLINE) -> None:
        self.episode, self.error, self.order = None, None, order(purpose)
        before = len(self.journal())
        self._thread = threading.Thread(target=self._run, name="supervising")
        self._thread.start()
        wait_until(lambda: self.num_moves(before) >= until_moves or not self._thread.is_alive(), timeout_s=20.0)

    def _run(self) -> None:
        try:
            self.episode = self.host.run(self.order)
        except Exception as error:
            self.error = error

    def ended(self, *, within_s: float = 5.0) -> Episode | None:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the episode has not ended"
        return self.episode

    def send_signal(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a process; returns the monotonic time in ns."""
        now_ns = time.monotonic_ns()
        os.kill(self.host.processes[name], number)
        return now_ns

    def journal(self) -> list[JournalNote]:
        return read_journal(self.journal_path)

    def num_moves(self, since: int = 0) -> int:
        return sum(note.moves for note in self.journal()[since:])

    def after(self, time_ns: int) -> list[JournalNote]:
        return [note for note in self.journal() if note.time_ns >= time_ns]

    def close(self) -> None:
        self.stop.set()
        self.host.close()
        self.cell.close()


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Processes of the test. At its end no process, shared memory, folder, thread or open file of it may remain."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("LIVE_HOST", mark)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    threads, files, shared = set(threading.enumerate()), _open_files(), set(os.listdir("/dev/shm"))
    marked = MarkedProcesses(mark)
    yield marked
    gc.collect()  # a mapping keeps its descriptor open until it is collected
    assert marked.alive() == {}
    ours = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert ours == []  # torch keeps an empty folder for its compiler
    assert [name for name in os.listdir("/dev/shm") if "dovetail" in name and name not in shared] == []
    assert set(threading.enumerate()) <= threads
    assert _open_files() <= files


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def live(tmp_path, processes):
    arms: list[LiveHost] = []

    def make(*overrides: str, spool: bool = True, success_detection: SuccessDetection | None = None) -> LiveHost:
        arms.append(LiveHost(tmp_path, *overrides, spool=spool, success_detection=success_detection))
        return arms[-1]

    yield make
    for arm in arms:
        arm.close()


def main() -> None:
    arm = LiveHost(Path(sys.argv[1]), *sys.argv[2:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: arm.stop.set())
    arm.host.start()
    sys.stdout.write(json.dumps({**arm.host.processes}) + "\n")
    sys.stdout.flush()
    episode = arm.host.run(order())
    fault = arm.host.fault
    arm.close()
    result = {"fault": fault, "outcome": episode and episode.outcome, "steps": len(episode) if episode else 0}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
