"""A run on Ray with two emulated arms on two machines, faults and STOP presses, for the soak.

Two network namespaces are the machines, so that their link can be cut. The second one has processes of its own, so its arm
cannot find the memory of the run's STOP: the Ray driver relays STOP to it over the link.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.bench.stop._console import Console
from dovetail.live.run_stop import STOP_JSON, Kind, NotRunning, RunStop
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal
from dovetail.testing.socket_arm_process import ArmProcess
from support.namespaces import ip
from support.ray_world import World

__all__ = ["Cut", "Faults", "Presses", "SoakWorld", "soak_layout"]

ROLES = ("StoreRole", "LearnerRole", "WeightsRole", "LabelerRole", "RobotRole")
HOST = ("control", "inference", "recorder", "guard")
MAX_HEARD_MS = 1000.0
SOURCES = ("console", "gamepad", "pedal", "dovetail stop")
_DEVICES = "dovetail.testing.input_devices"
_LAYOUT = """
task: {{type: "dovetail.testing.blocking_plugins:BlockingTask", max_steps: 40, block_file: "%(block)s"}}
robot: {{type: "dovetail.testing.socket_arm:SocketArm", action: ee_delta, control_hz: 20, address: "127.0.0.1:1"}}
policy: {{type: "dovetail.testing.blocking_policy:BlockingPolicy", hidden: [8], horizon: 4}}
actor: {{type: sequential, layout: processes, flush_every_s: 0.2, heartbeat_timeout_s: 0.5}}
algorithm: {{type: rlpd, batch_size: 8, hidden: [8]}}
labels: [{{type: "dovetail.testing.blocking_plugins:BlockingLabeler"}}]
learner: {{utd: 0.01, warmup_updates: 0, bc_updates: 0}}
run: {{demos: 0, env_steps: 100000000, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0,
       checkpoint_every_s: 5.0, stop_when_solved: {{window: 6, success_rate: 0.4}}}}
runtime: ray
cluster:
  robot_timeout_s: 600
  on_disconnect: hold
  robots:
    arm-0: {{machine: desk, robot: {{address: "%(first)s"}}, operator: %(operator)s}}
    arm-1: {{machine: cell, robot: {{address: "%(second)s"}}}}
  learner: {{machine: desk}}
  labeler: {{machine: desk}}
  weights: {{machine: desk}}
"""
# Python reads it at the start of every process of the run: a disk that is slow or hangs shows in fsync.
_DISK = """
import os, time
def _words():
    try:
        with open({block!r}) as file:
            return file.read().split()
    except OSError:
        return []
def _guarded(call):
    def sync(descriptor):
        if "slow" in _words():
            time.sleep(0.2)
        while "fsync" in _words():
            time.sleep(0.005)
        return call(descriptor)
    return sync
os.fsync, os.fdatasync = _guarded(os.fsync), _guarded(os.fdatasync)
"""

# Each prints when it presses. The start of Python is not part of the time; `dovetail stop` imports its code in that time.
_POST = """
import sys, time
from dovetail.bench.stop._console import Console
console = Console(sys.argv[1], sys.argv[2])
print(time.monotonic_ns(), flush=True)
console.post("emergency")
"""
_STOP = """
import sys, time
print(time.monotonic_ns(), flush=True)
sys.argv[:] = ["dovetail", "stop", sys.argv[1]]
from dovetail.cli.entry import entry
entry()
"""


def soak_layout(folder: Path, arms: list[ArmProcess], gamepad: EmulatedGamepad, pedal: EmulatedPedal) -> str:
    inner = f"{{{{type: '{_DEVICES}:EmulatedGamepadOperator', path: '{gamepad.path}'}}}}"
    operator = (
        f"{{{{type: '{_DEVICES}:EmulatedPedalOperator', path: '{pedal.path}', key: KEY_B, stop_key: KEY_C, "
        f"operator: {inner}}}}}"
    )
    first, second = (arm.address for arm in arms)
    return _LAYOUT % {"block": folder / "block", "first": first, "second": second, "operator": operator}


class SoakWorld(World):
    """A World whose output goes to a file, because it is long, and whose disk can be slow."""

    def __init__(
        self,
        folder: Path,
        temporary: Path,
        *,
        layout: str,
        arms: list[ArmProcess],
        namespaces: tuple[str, ...],
        cable: str,
    ) -> None:
        """`cable`: the network device of the first namespace that leads to the second."""
        super().__init__(folder, temporary, layout=layout)
        self.arms, self._namespaces, self._cable = arms, namespaces, cable
        self.is_cut = False
        self.cuts: list[Cut] = []
        self.block_file = folder / "block"
        self.block_file.write_text("")
        (folder / "sitecustomize.py").write_text(_DISK.format(block=str(self.block_file)))
        self.environment["PYTHONPATH"] = os.pathsep.join([str(folder), self.environment["PYTHONPATH"]])

    def _run(self, *words: str) -> None:
        command = [*self.command_prefix, sys.executable, "-m", "dovetail.cli", "run", *words, "--quiet"]
        with (self.folder / "output").open("ab") as output:
            self.driver = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def pids(self, role: str) -> list[int]:
        """Processes of a role in the namespaces. Nodes of a cluster do not pass on the mark of the run."""
        return self._pids_in(role, self._namespaces)

    def states(self, role: str) -> dict[int, str]:
        """Processes of a role at the first arm, which has the devices, and whether each is paused."""
        return {pid: process_state(pid) for pid in self._pids_in(role, self._namespaces[:1])}

    def _pids_in(self, role: str, namespaces: tuple[str, ...]) -> list[int]:
        places = {os.stat(f"/run/netns/{name}").st_ino for name in namespaces}
        word = f"process_main {role} " if role in HOST else f"ray::{role}"
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if word in title and (entry / "ns" / "net").stat().st_ino in places:
                        found.append(int(entry.name))
        return sorted(found)

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def wait_for_exit(self, *, within_s: float = 600.0) -> tuple[int, str]:
        assert self.driver is not None
        try:
            code = self.driver.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run has not ended: {self.output()[-3000:]}") from None
        return code, self.output()[-3000:]

    def wait_until(self, condition: Callable[[], Any], *, within_s: float = 600.0, what: str = "") -> Any:
        until_s = time.monotonic() + within_s
        while not (value := condition()):
            assert self.driver is not None
            assert self.driver.poll() is None, f"the run has ended before {what}: {self.output()[-3000:]}"
            assert time.monotonic() < until_s, f"not within {within_s:g} s: {what} {self._newest()}"
            time.sleep(0.05)
        return value

    def _newest(self) -> str:
        """For messages: the load, when each arm moved last, what holds it, the newest events and the output."""
        moved = [(arm.motions() or [0])[-1] for arm in self.arms]
        ago_s = [round((time.monotonic_ns() - one) / 1e9, 1) for one in moved]
        stops = "; ".join(map(self._stop_state, (self.path, *sorted((self.path / "robots").glob("*")))))
        roles = {role: [(pid, process_state(pid)) for pid in self.pids(role)] for role in (*ROLES, *HOST)}
        return (
            f"(load {os.getloadavg()[0]:.0f}, the arms moved {ago_s} s ago; STOP: {stops}; processes: {roles}) "
            f"{self.events()[-40:]} {self.output()[-6000:]}"
        )

    def _stop_state(self, folder: Path) -> str:
        """The newest records of the list of STOP in a folder: of the run, or of an arm that is relayed."""
        try:
            with RunStop.attach(folder) as stop:
                held = [arm for arm in stop.arms if stop.is_stopped(arm)]
                ago = [
                    (r.kind.name, r.arm, r.source, (time.monotonic_ns() - r.time_ns) // 1_000_000)
                    for r in stop.records()
                ]
                return f"{folder.name} holds {held} {ago[-8:]} ms ago"
        except NotRunning as error:
            return str(error)

    def acknowledge(self) -> None:
        with contextlib.suppress(NotRunning):
            stop = RunStop.attach(self.path)
            stop.acknowledge(source="soak")
            stop.close()

    def cut_link(self, ended: threading.Event, seconds: float) -> None:
        """Cut the link for a time, and note how long the arm behind it moved on."""
        self.is_cut, cut_ns = True, time.monotonic_ns()
        self._set_link("down")
        ended.wait(seconds)
        motions = self.arms[1].motions(after_ns=cut_ns)
        self._set_link("up")
        self.is_cut = False
        moved_ms = (motions[-1] - cut_ns) / 1e6 if motions else 0.0
        self.cuts.append(Cut(seconds=round(seconds, 2), moved_ms=round(moved_ms, 1)))

    def restore_link(self) -> None:
        self._set_link("up")

    def _set_link(self, state: str) -> None:
        ip("-n", self._namespaces[0], "link", "set", self._cable, state)

    def uses_relay(self, name: str) -> bool:
        """Whether an arm has a list of STOP of its own. Otherwise it shares the memory of the run."""
        return (self.path / "robots" / name / STOP_JSON).exists()

    def wait_for_motion(self, *, within_s: float = 180.0) -> float:
        """Acknowledge like a patient person until both arms move; returns after how many seconds they did."""
        since_ns = time.monotonic_ns()
        next_s = 0.0

        def moves() -> bool:
            nonlocal next_s
            if time.monotonic() > next_s:  # a restarted arm may have another fault
                self.acknowledge()
                next_s = time.monotonic() + 3.0
            return all(arm.motions(after_ns=since_ns) for arm in self.arms)

        self.wait_until(moves, within_s=within_s, what="the arms move again")
        return (time.monotonic_ns() - since_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The link was cut for some seconds. `moved_ms`: after the cut, until the last motion of the arm behind it."""

    seconds: float
    moved_ms: float


def process_state(pid: int) -> str:
    """runs, paused or dead."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "dead"
    return {"T": "paused", "Z": "dead", "X": "dead"}.get(letter, "runs")


class Faults:
    """One fault at a time, each for a moment."""

    def __init__(self, run: SoakWorld, rng: random.Random) -> None:
        self._run, self._rng = run, rng
        self.counts: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(60.0)

    def _loop(self) -> None:
        while not self._ended.wait(self._rng.uniform(1.0, 6.0)):
            fault = self._rng.choice(("kill", "kill", "pause", "pause", "slow", "fsync", "cut", "silent"))
            try:
                self.counts[self._apply(fault, self._rng.uniform(0.3, 3.0))] += 1
            except (OSError, IndexError):  # the process has just ended, or is not there yet
                self.counts["missed"] += 1

    def _apply(self, fault: str, seconds: float) -> str:
        run, rng = self._run, self._rng
        if fault in ("kill", "pause"):
            role = rng.choice((*ROLES, *HOST))
            pid = rng.choice(run.pids(role))
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            if fault == "pause":
                self._ended.wait(seconds)
                os.kill(pid, signal.SIGCONT)
            return f"{fault} {role}"
        if fault in ("slow", "fsync"):
            run.block_file.write_text(fault)
            self._ended.wait(seconds)
            run.block_file.write_text("")
        elif fault == "cut":
            run.cut_link(self._ended, seconds)
        else:
            arm = rng.choice(run.arms)
            arm.behave(observe="silent")
            self._ended.wait(seconds)
            arm.behave_well()
        return fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Who could hear a press of a device: all that ran, with the device open, just before and just after it."""

    listening: tuple[str, ...]  # RobotRole and control
    role: str  # state of the arm's RobotRole: runs, paused or dead. It may run without the device while it starts
    control: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressed:
    """A press in force. A press of a command is when Python has started in its process."""

    source: str
    heard_ms: float  # from the press until it was in force for the run
    delays_ms: tuple[float | None, ...]  # from the press, by arm; 0: it stood already; None: it did not stop
    back_s: float  # until both arms moved again
    link_cut: bool = False  # at the press: the relay may not reach the second arm
    readers: Readers | None = None  # of a device

    @property
    def could_be_heard(self) -> bool:
        """Whether the console, a command, or a process with the device open heard it at once."""
        return self.readers is None or bool(self.readers.listening)

    @property
    def worst_ms(self) -> float:
        """From the press. From the time it was heard if all processes with the device were dead, paused or starting."""
        if None in self.delays_ms:
            return float("inf")
        worst = max(delay for delay in self.delays_ms if delay is not None)
        return worst if self.could_be_heard else max(0.0, worst - self.heard_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unheard:
    source: str
    readers: Readers | None
    listens_again: bool  # the arm's RobotRole has the device open once the arms move


class Presses:
    """Presses STOP from random sources, checks that every arm stands, and acknowledges."""

    def __init__(
        self,
        run: SoakWorld,
        rng: random.Random,
        *,
        console: Console,
        devices: dict[str, EmulatedGamepad | EmulatedPedal],
        prefix: tuple[str, ...],
    ) -> None:
        self._run, self._rng, self._console, self._devices, self._prefix = run, rng, console, devices, prefix
        self.pressed: list[Pressed] = []
        self.unheard: list[Unheard] = []

    def press_once(self) -> None:
        run, source = self._run, self._rng.choice(SOURCES)
        stop = RunStop.attach(run.path)
        known, before, link_cut = stop.position, self._listening(source), run.is_cut
        triggered_ns = self._trigger(source)
        time.sleep(0.05)
        readers, link_cut = self._readers(source, before), link_cut or run.is_cut
        until_s, presses = time.monotonic() + (5.0 if source in self._devices else 20.0), []
        while not presses and time.monotonic() < until_s:
            presses = [one for one in stop.records(start=known) if one.kind is Kind.PRESS]
            time.sleep(0.002)
        stop.close()
        if not presses:
            run.wait_for_motion()  # a fault may wait for its acknowledgement
            again = source in self._devices and self._listens_again(source)
            self.unheard.append(Unheard(source=source, readers=readers, listens_again=again))
            return
        until_s = time.monotonic() + 15.0
        while time.monotonic() < until_s:
            if all(arm.delay_ns(triggered_ns) is not None for arm in run.arms):
                break
            time.sleep(0.01)
        time.sleep(0.5)
        delays = [arm.delay_ns(triggered_ns) for arm in run.arms]
        back_s = run.wait_for_motion()
        self.pressed.append(
            Pressed(
                source=source,
                heard_ms=round((presses[0].time_ns - triggered_ns) / 1e6, 1),
                delays_ms=tuple(None if one is None else round(one / 1e6, 1) for one in delays),
                back_s=round(back_s, 1),
                link_cut=link_cut,
                readers=readers,
            )
        )

    @property
    def lost(self) -> list[Pressed | Unheard]:
        """Presses that were not heard within a second, although the source is the console or a command, or a process
        had the device open."""
        late = [one for one in self.pressed if one.heard_ms > MAX_HEARD_MS and one.could_be_heard]
        return [*late, *(one for one in self.unheard if one.readers is None or one.readers.listening)]

    def _listening(self, source: str) -> dict[int, str]:
        """Processes of the first arm that have the device open and run, by process id."""
        if source not in self._devices:
            return {}
        readers = self._devices[source].reader_pids()
        names = {pid: role for role in ("RobotRole", "control") for pid in self._run.states(role)}
        return {pid: names.get(pid, "unknown") for pid in readers if process_state(pid) == "runs"}

    def _readers(self, source: str, before: dict[int, str]) -> Readers | None:
        if source not in self._devices:
            return None
        after = self._listening(source)
        both = sorted({name for pid, name in before.items() if pid in after})
        role, control = (self._state(name) for name in ("RobotRole", "control"))
        return Readers(listening=tuple(both), role=role, control=control)

    def _state(self, role: str) -> str:
        states = self._run.states(role).values()
        return next((state for state in ("runs", "paused") if state in states), "dead")

    def _listens_again(self, source: str) -> bool:
        until_s = time.monotonic() + 60.0
        while time.monotonic() < until_s:
            if "RobotRole" in self._listening(source).values():
                return True
            time.sleep(0.05)
        return False

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in (*self.pressed, *self.unheard)]

    def _trigger(self, source: str) -> int:
        """Press; returns when."""
        if source in self._devices:
            pressed_ns = time.monotonic_ns()
            self._devices[source].stop()
            return pressed_ns
        if source == "console":
            words = ("-c", _POST, self._console.address, self._console.token)
        else:
            words = ("-c", _STOP, str(self._run.path))
        environment = {name: value for name, value in os.environ.items() if name != "RAY_WORLD"}
        process = subprocess.Popen(
            [*self._prefix, sys.executable, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        return int(process.stdout.readline())
