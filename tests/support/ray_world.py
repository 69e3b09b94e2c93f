"""Whole runs on their own Ray with real processes to kill, and checks of their files.

with World(tmp_path) as world:
    world.start("cluster.num_labelers=2")
    world.wait_for_episodes(2)
    world.kill("LearnerRole")
    world.let_episodes_succeed()          # every episode succeeds from now on, so that the run ends
    world.wait_for_report()
    world.check_nothing_lost()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.core.clock import NS_PER_S
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_log
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.runs.folder import RunFolder
from dovetail.testing.live import JournalNote, read_journal
from support import TESTS

__all__ = ["HOST_ROLES", "LAYOUT", "World", "eventually", "world"]

LAYOUT = """
task: {{type: "support.ray_plugins:UntilSignaled", max_steps: 30, tolerance: 1.0e-4, enough: "{enough}"}}
robot: {{type: "support.ray_plugins:FaultyArm", journal: "{journal}", signs: "{signs}"}}
operator: {{type: scripted, watched_share: 0.0}}
policy: {{type: gaussian_mlp, hidden: [32, 32]}}
actor: {{type: sequential, layout: processes, flush_every_s: 0.1, inference_timeout_s: 2.0, heartbeat_timeout_s: 0.5}}
algorithm: {{type: "support.ray_algorithms:RunsOutOfMemory", signs: "{signs}", batch_size: 32, hidden: [32, 32], lr: 0.001,
            num_steps: 3}}
learner: {{utd: 1, warmup_updates: 20, bc_updates: 20}}
run: {{demos: 0, demo_noise: 0.0, env_steps: 1000000, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0,
       checkpoint_every_s: 1.0, stop_when_solved: {{window: 20, success_rate: 0.4}}}}
labels: [{{type: "support.ray_plugins:HangingLabeler", signs: "{signs}"}}]
labeling: {{retry_s: 0.2, max_retry_s: 1.0}}
cluster: {{robot_timeout_s: 600}}
runtime: ray
"""
HOST_ROLES = ("control", "inference", "recorder", "guard")  # of an arm, below its RobotRole


def eventually(
    condition: Callable[[], Any],
    *,
    within_s: float = 600.0,
    what: str = "",
    details: Callable[[], Any] = lambda: "",
) -> Any:
    """Return the value of `condition()` once it is truthy; fail with `details()` after `within_s`."""
    until_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < until_s, f"not true within {within_s:g} s: {what} {details()}"
        time.sleep(0.05)
    return value


class World:
    """A run with its files and processes, which are found by a mark in their environment."""

    def __init__(self, folder: Path, temporary: Path, *, layout: str = LAYOUT, runs: Path | None = None) -> None:
        self.folder, self._runs = folder, runs or folder / "runs"
        self.path = self._runs / "r"
        self.journal, self._enough = folder / "journal", folder / "enough"
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.environment = {
            **os.environ,
            "RAY_WORLD": self._mark,
            "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        }
        self.signs = folder / "signs"  # see `ray_plugins`
        self.signs.mkdir()
        self.config = folder / "run.yaml"
        self.config.write_text(layout.format(enough=self._enough, journal=self.journal, signs=self.signs))
        self.driver: subprocess.Popen[str] | None = None
        self.command_prefix: tuple[str, ...] = ()  # for example `ip netns exec NAME`
        self.recorded: dict[str, str] = {}  # episodes that had a step in a spool, and their arm
        self._watching = threading.Event()
        threading.Thread(target=self._watch_spools, daemon=True).start()

    # ---- the run

    def start(self, *overrides: str) -> None:
        self._run(str(self.config), *overrides, "--name", "r", "--runs-dir", str(self._runs))

    def resume(self) -> None:
        self._run("--resume", str(self.path))

    def _run(self, *words: str) -> None:
        command = [*self.command_prefix, sys.executable, "-m", "dovetail.cli", "run", *words, "--quiet"]
        self.driver = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def wait_for_episodes(self, num_episodes: int = 1) -> None:
        """Wait for this many more online episodes."""
        before = self.num_online_episodes()
        self.wait_until(
            lambda: self.num_online_episodes() >= before + num_episodes, what=f"{num_episodes} more episodes"
        )

    def num_online_episodes(self) -> int:
        return len(self.events("episode"))

    def env_steps(self) -> int:
        return max((event["env_steps"] for event in self.events("episode")), default=0)

    def online_episodes_of(self, robot: str) -> int:
        return sum(event["robot"] == robot for event in self.events("episode"))

    def command(self, *words: str) -> None:
        """Run another command on this run."""
        whole = [*self.command_prefix, sys.executable, "-m", "dovetail.cli", *words, "--runs-dir", str(self._runs)]
        done = subprocess.run(whole, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def let_episodes_succeed(self) -> None:
        self._enough.touch()

    def give(self, sign: str) -> None:
        (self.signs / sign).touch()

    def was_taken(self, sign: str) -> bool:
        return (self.signs / f"{sign}.taken").exists()

    def wait_until(self, condition: Callable[[], Any], *, within_s: float = 600.0, what: str = "") -> Any:
        """As `eventually`, but fail when the run ends."""

        def check() -> Any:
            assert self.driver is not None
            if (value := condition()) or self.driver.poll() is None:
                return value
            raise AssertionError(f"the run has ended before {what}: {self.driver.communicate()[1][-3000:]}")

        return eventually(check, within_s=within_s, what=what, details=lambda: self.events()[-5:])

    def wait_for_report(self, *, within_s: float = 600.0) -> dict[str, Any]:
        """Wait until the run ends without an error; return its report."""
        code, errors = self.wait_for_exit(within_s=within_s)
        assert code == 0, errors
        report: dict[str, Any] = json.loads((self.path / "report.json").read_text())
        return report

    def wait_for_exit(self, *, within_s: float = 600.0) -> tuple[int, str]:
        assert self.driver is not None
        try:
            self.stdout, errors = self.driver.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run has not ended: {self.events()[-8:]}") from None
        return self.driver.returncode, errors

    def _watch_spools(self) -> None:
        while not self._watching.wait(0.02):
            for folder in self.path.glob("robots/*/spool"):
                spool = Spool(folder)
                for path in folder.glob("[!.]*.journal"):
                    if path.stem not in self.recorded:
                        tail = spool.tail(path.stem)
                        if tail is not None and tail.segments:
                            self.recorded[path.stem] = folder.parent.name

    # ---- its processes

    def alive(self) -> dict[int, str]:
        """All processes of the run with their titles."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if f"RAY_WORLD={self._mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "cmdline").read_bytes().split(b"\0")
                        found[int(entry.name)] = b" ".join(words).decode(errors="replace").strip()
                except OSError:
                    continue  # it has ended
        return found

    def titles(self) -> set[str]:
        return set(self.alive().values())

    def pids(self, role: str) -> list[int]:
        """Processes of a role (`StoreRole`) or of an arm (`control`)."""
        words = (f"dovetail.robot_host.process_main {role} ",) if role in HOST_ROLES else (f"ray::{role}",)
        return sorted(pid for pid, title in self.alive().items() if any(word in title for word in words))

    def pid(self, role: str) -> int:
        return int(self.wait_until(lambda: self.pids(role), what=f"there is a {role}")[0])

    def kill(self, role: str, number: int = signal.SIGKILL) -> tuple[int, int]:
        """Kill a role; return its pid and the time in monotonic ns."""
        pid = self.pid(role)
        now_ns = time.monotonic_ns()
        os.kill(pid, number)
        return pid, now_ns

    def kill_driver(self) -> int:
        assert self.driver is not None
        now_ns = time.monotonic_ns()
        self.driver.kill()
        self.driver.communicate()
        return now_ns

    def wait_for_no_processes(self, *, within_s: float = 60.0) -> None:
        eventually(
            lambda: not self.alive(), within_s=within_s, what="all processes have ended", details=self.alive
        )

    # ---- its files

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if not kinds or event["event"] in kinds]

    def num_lost(self, role: str) -> int:
        return sum(event["role"].startswith(role) for event in self.events("lost"))

    def num_restarts(self, role: str) -> int:
        return sum(event["role"].startswith(role) for event in self.events("restarted"))

    def checkpoint(self) -> dict[str, Any]:
        return dict(checkpoint_facts(self.path / "checkpoints" / "last"))

    def notes(self, since_ns: int = 0) -> list[JournalNote]:
        return [note for note in read_journal(self.journal) if note.time_ns >= since_ns]

    def stands_since(self, since_ns: int) -> bool:
        """Whether the arm got a stop or hold command after that time."""
        return any(not note.moves for note in self.notes(since_ns))

    def stood_after_s(self, since_ns: int) -> float:
        """Seconds from that time until the arm got a stop or hold command."""
        return (next(note.time_ns for note in self.notes(since_ns) if not note.moves) - since_ns) / NS_PER_S

    # ---- checks for every run

    def check_nothing_lost(self) -> None:
        """Every recorded episode is in the log once, undamaged, and at most once in the events."""
        folder = RunFolder.open(self.path)
        log = EpisodeLog(folder.episodes)
        ids = log.ids()
        assert len(ids) == len(set(ids))
        assert [finding for finding in verify_log(folder.episodes) if not finding.is_intact] == []
        assert set(self.recorded) <= set(ids)
        for spool in (*self.path.glob("robots/*/spool"), folder.spool):
            assert Spool(spool).pending() == []
            assert Spool(spool).running() == []
        counted = [event["id"] for event in self.events("episode")]
        assert len(counted) == len(set(counted)), "an episode has two events"
        online = {episode_id for episode_id in ids if log.manifest(episode_id).purpose is Purpose.ONLINE}
        assert set(counted) <= online

    def check_only_forward(self) -> None:
        """The learner continued from its checkpoints, and no arm ever acted with older weights than before."""
        updates = [event["updates"] for event in self.events("checkpoint")]
        assert updates == sorted(updates)
        log = EpisodeLog(self.path / "episodes")
        manifests = sorted(
            (log.manifest(episode_id) for episode_id in log.ids()), key=lambda info: info.started_unix_ns
        )
        for arm in set(self.recorded.values()):
            online = [
                info for info in manifests if info.purpose is Purpose.ONLINE and self.recorded.get(info.id) == arm
            ]
            versions = [max(info.policy_versions) for info in online if max(info.policy_versions)]  # 0: untrained
            assert versions == sorted(versions)

    def close(self) -> None:
        self._watching.set()
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.communicate()
        try:
            self.wait_for_no_processes()
        finally:
            for pid in self.alive():
                os.kill(pid, signal.SIGKILL)


@contextmanager
def world(folder: Path, *, layout: str = LAYOUT, runs: Path | None = None) -> Iterator[World]:
    """A World with a temporary folder whose path is short enough for Ray's sockets."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        run = World(folder, Path(temporary), layout=layout, runs=runs)
        try:
            yield run
        finally:
            run.close()
    assert {name for name in set(os.listdir("/dev/shm")) - shared if "dovetail" in name} == set()
