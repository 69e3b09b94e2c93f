"""A whole run in real processes with emulated arms, which a measurement can get stuck at a place and stop from a source.

with StopSystem(folder, layout="processes", num_arms=1) as system:
    with system.stuck("driver observe", arm=0):
        delays_ms = system.press("console").delays_ms
    system.acknowledge()                   # the arms move again
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dovetail.bench.stop._console import Console
from dovetail.bench.stop._places import stuck_at
from dovetail.bench.stop._press import Press, press
from dovetail.core.errors import FailureError
from dovetail.live.run_stop import RunStop
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal
from dovetail.testing.socket_arm_process import ArmProcess

__all__ = ["StopSystem", "wait_for"]

CONTROL_HZ = 20.0
EPISODE_STEPS = 40
START_S, MOVE_S = 120.0, 60.0
_DEVICES = "dovetail.testing.input_devices"
_CONFIG = """
task: {{type: "dovetail.testing.blocking_plugins:BlockingTask", max_steps: {steps}, block_file: "{block}"}}
robot: {{type: "dovetail.testing.{driver}", action: {action}, control_hz: {hz}, block_file: "{block}",
        address: "{address}", stop_address: "{stop_address}"}}
operator: {operator}
policy: {{type: "dovetail.testing.blocking_policy:BlockingPolicy", hidden: [8], horizon: 4, block_file: "{block}"}}
actor: {{type: sequential, layout: {layout}, flush_every_s: 0.2, heartbeat_timeout_s: 0.5, home: {home}}}
algorithm: {{type: rlpd, batch_size: 8, hidden: [8]}}
labels: [{{type: "dovetail.testing.blocking_plugins:BlockingLabeler", block_file: "{block}"}}]
learner: {{utd: 0.001, warmup_updates: 0, bc_updates: 0}}
run: {{demos: 0, env_steps: 100000000, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}}
safety: {{controller_watchdog: true}}
"""
# Python reads it at the start of every process of the run. A disk that hangs or is full shows in fsync.
_DISK = """
import errno, os, time
def _words():
    try:
        with open({block!r}) as file:
            return file.read().split()
    except OSError:
        return []
def _guarded(call):
    def sync(descriptor):
        words = _words()
        for word in {{"fsync", "full"}}.intersection(words):
            open({block!r} + "." + word, "w").close()
        if "full" in words:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while "fsync" in _words():
            time.sleep(0.005)
        return call(descriptor)
    return sync
os.fsync, os.fdatasync = _guarded(os.fsync), _guarded(os.fdatasync)
"""


def wait_for(condition: Callable[[], Any], *, timeout_s: float, what: str) -> Any:
    """The first true value of `condition()`. Raises FailureError after the time."""
    until_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > until_s:
            raise FailureError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)
    return value


def _take_terminal() -> None:
    """Ctrl-C and a lost terminal reach this process, even if the bench itself runs under `nohup`."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class StopSystem:
    """`dovetail run` in a terminal of its own, with a console and one process for each arm."""

    def __init__(
        self,
        folder: Path,
        *,
        layout: str,
        num_arms: int = 1,
        keyboard: bool = False,
        homes: bool = False,
        console: bool = True,
        driver: str = "socket_arm:SocketArm",
    ) -> None:
        """`layout` is one of LAYOUTS. The first arm has a pedal and a gamepad; with `keyboard`, the terminal's keys instead.

        `homes`: joint targets and homing; otherwise Cartesian actions. A run without `console` ends after a stop.
        """
        self.layout, self.num_arms, self.driver = layout, num_arms, driver
        self.keyboard, self.homes, self._has_console = keyboard, homes, console
        self.folder, self.run_folder = folder, folder / "runs" / "r"
        self.block_file = folder / "block"
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._stack = contextlib.ExitStack()
        self.arms: list[ArmProcess] = []
        self.gamepad, self.pedal = EmulatedGamepad(folder / "gamepad"), EmulatedPedal(folder / "pedal")

    # ---- start and end

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.arms = self.open_arms(self._stack)
            for device in (self.gamepad, self.pedal):
                self._stack.enter_context(device)
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything, also what is stuck."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._stack.close()

    def _start(self) -> None:
        self.block_file.write_text("")
        (self.folder / "sitecustomize.py").write_text(_DISK.format(block=str(self.block_file)))
        (self.folder / "run.yaml").write_text(self.config())
        self.terminal, slave = pty.openpty()
        self._stack.callback(self.hang_up)
        self._output = self._stack.enter_context((self.folder / "output").open("wb"))
        console = ("--console",) if self._has_console and not self.keyboard else ()
        command = ["run", str(self.folder / "run.yaml"), "--name", "r", "--runs-dir", str(self.run_folder.parent)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dovetail.cli", *command, *console, "--quiet"],
            cwd=self.folder,
            env=self.environment,
            stdin=slave,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._stack.callback(self.process.wait)
        self._wait("the arms to move", lambda: all(arm.motions() for arm in self.arms), timeout_s=START_S)
        if console:
            self.console = self._wait("the console", lambda: Console.printed_in(self.output()), timeout_s=START_S)
        elif self._has_console:
            self.console = Console.start(self.run_folder, environment=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(self.folder), os.environ.get("PYTHONPATH", "")))
        return {**os.environ, "DOVETAIL_STOP_SYSTEM": self._mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def open_arms(self, stack: contextlib.ExitStack) -> list[ArmProcess]:
        """The emulated arms, which the stack closes. Those of a subclass need `motions` and `delay_ns` only."""
        return [stack.enter_context(ArmProcess()) for _ in range(self.num_arms)]

    def config(self) -> str:
        """The settings of the run."""
        first, operator = self.arms[0], self.operator()
        text = _CONFIG.format(
            steps=EPISODE_STEPS,
            block=self.block_file,
            driver=self.driver,
            action="joint_target" if self.homes else "ee_delta",
            hz=CONTROL_HZ,
            address=first.address,
            stop_address=first.stop_address,
            operator=operator if self.layout != "Ray" else "{type: none}",
            layout="one_process" if self.layout == "one process" else "processes",
            home="{action: [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]}" if self.homes else "null",
        )
        if self.layout == "Ray":
            text += "runtime: ray\ncluster:\n  robots:\n"
            for number, arm in enumerate(self.arms):
                robot = f"{{address: '{arm.address}', stop_address: '{arm.stop_address}'}}"
                text += f"    arm-{number}: {{robot: {robot}, operator: {operator if number == 0 else '{}'}}}\n"
        return text

    def operator(self) -> str:
        """The operator section of the first arm: the pedal wraps the gamepad, so both are read."""
        if self.keyboard:
            return "{type: keyboard}"
        gamepad = f"{{type: '{_DEVICES}:EmulatedGamepadOperator', path: '{self.gamepad.path}'}}"
        keys = "key: KEY_B, stop_key: KEY_C"
        return (
            f"{{type: '{_DEVICES}:EmulatedPedalOperator', path: '{self.pedal.path}', {keys}, operator: {gamepad}}}"
        )

    def output(self) -> str:
        """What the run has printed."""
        return (self.folder / "output").read_text(errors="replace")

    def _wait(self, what: str, condition: Callable[[], Any], *, timeout_s: float) -> Any:
        def check() -> Any:
            ended = self.process.poll() is not None or "the console has died" in self.output()
            if not (value := condition()) and ended:
                raise FailureError(f"the run or its console has ended before {what}: {self.output()[-2000:]}")
            return value

        return wait_for(check, timeout_s=timeout_s, what=f"{what}; the run printed: {self.output()[-2000:]}")

    # ---- its processes

    def processes(self) -> dict[int, str]:
        """Command lines of all processes of the run, by process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    if f"DOVETAIL_STOP_SYSTEM={self._mark}".encode() in (entry / "environ").read_bytes().split(
                        b"\0"
                    ):
                        words = (entry / "cmdline").read_bytes().split(b"\0")
                        found[int(entry.name)] = b" ".join(words).decode(errors="replace")
        return found

    def pid_of(self, name: str, *, arm: int) -> int:
        """A process of an arm: control, inference, recorder, guard or supervisor."""
        control = self.arms[arm].client_pid
        supervisor = _parent(control)
        if name in ("control", "supervisor"):
            return control if name == "control" else supervisor
        for pid, title in self.processes().items():
            if f"process_main {name} " in title and _parent(pid) == supervisor:
                return pid
        raise FailureError(f"arm {arm} has no {name} process")

    def pid_of_role(self, role: str) -> int:
        """A Ray actor, such as StoreRole."""
        found = [pid for pid, title in self.processes().items() if f"ray::{role}" in title]
        if not found:
            raise FailureError(f"there is no process of {role}")
        return found[0]

    def console_pid(self) -> int:
        found = [pid for pid, title in self.processes().items() if " console " in title]
        if not found:
            raise FailureError("the run has no console")
        return found[0]

    def hang_up(self) -> None:
        """Close the terminal. The kernel sends SIGHUP."""
        if self.terminal >= 0:
            os.close(self.terminal)
        self.terminal = -1

    # ---- one case

    def block(self, *names: str) -> None:
        """From now on these calls block: observe, send, reset, act, label, fsync; `full`: fsync fails. None: none blocks."""
        for path in self.folder.glob("block.*"):
            path.unlink()
        self.block_file.write_text(" ".join(names))

    def has_blocked(self, name: str) -> bool:
        return (self.folder / f"block.{name}").exists()

    @contextlib.contextmanager
    def stuck(self, place: str, *, arm: int = 0) -> Iterator[None]:
        """Within it, the system is stuck at a place."""
        with stuck_at(self, place, arm=arm):
            yield

    def press(self, source: str) -> Press:
        """Press STOP and wait until every arm stands."""
        return press(self, source)

    def stop(self) -> RunStop:
        """The run's stop, for measurements."""
        return RunStop.attach(self.run_folder)

    def acknowledge(self) -> None:
        """Release the arms as a person does, after a moment, and wait until all of them move."""
        time.sleep(0.3)
        since_ns = time.monotonic_ns()
        stop = self.stop()
        stop.acknowledge(source="bench")
        self._wait(
            "the arms to move again",
            lambda: all(arm.motions(after_ns=since_ns) for arm in self.arms),
            timeout_s=MOVE_S,
        )
        stop.close()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
