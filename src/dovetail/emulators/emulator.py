"""What an emulator is, and the list of emulators. `dovetail emulate NAME key=value ...` runs one until Ctrl-C.

    with FrankaEmulator(FrankaEmulatorConfig(port=0)) as arm:     # in this process, for a test
        arm.describe()                                            # ["http://127.0.0.1:43121", ...]

    with EmulatorProcess("franka", "port=0") as arm:              # in a process of its own
        arm.lines[0]

An emulator listens on loopback only, because it asks for no token where the original asks for none.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from dovetail.config._tree import normalize_name
from dovetail.config.model import Config
from dovetail.core.errors import DovetailError, UsageError, did_you_mean
from dovetail.processes.priority import CONTROL_PRIORITY

__all__ = ["EMULATORS", "READY", "Emulator", "EmulatorProcess", "find_emulator", "robot_computer_priority"]

EMULATORS: dict[str, str] = {  # name: module:Class
    "remote": "dovetail.emulators.remote.emulator:RemoteEmulator",
    "igris_b": "dovetail.emulators.igris_b.emulator:IgrisBEmulator",
    "camera": "dovetail.emulators.camera.server:CameraEmulator",
    "franka": "dovetail.emulators.franka.emulator:FrankaEmulator",
    "feetech": "dovetail.emulators.feetech.emulator:FeetechEmulator",
}

READY = "ready"  # the last line that `dovetail emulate` prints before it waits


@runtime_checkable
class Emulator(Protocol):
    """`start` returns when clients may connect. `close` ends all threads and closes all sockets."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: Any) -> None: ...

    def start(self) -> None: ...

    def describe(self) -> Sequence[str]:
        """Lines for the person who started it, the first with its address. Valid after `start`."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def find_emulator(name: str) -> type[Emulator]:
    """The class of an emulator. Its module is imported now."""
    key = normalize_name(name)
    if key not in EMULATORS:
        raise UsageError(f"there is no emulator '{name}'.{did_you_mean(key, EMULATORS)}")
    module, _, attribute = EMULATORS[key].partition(":")
    found: type[Emulator] = getattr(importlib.import_module(module), attribute)
    return found


class EmulatorProcess:
    """An emulator in a process of its own, so that a test can pause or kill it."""

    def __init__(self, name: str, *settings: str, prefix: Sequence[str] = (), ready_s: float = 60.0) -> None:
        command = [*prefix, sys.executable, "-P", "-m", "dovetail.cli", "emulate", name, *settings]
        self._ready_s = ready_s
        self.lines: list[str] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self) -> Self:
        timer = threading.Timer(self._ready_s, self.process.kill)
        timer.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.strip() == READY:
                    return self
                self.lines.append(line.strip())
        finally:
            timer.cancel()
        raise DovetailError(f"the emulator ended: {' '.join(self.lines)}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def robot_computer_priority() -> tuple[str, ...]:
    """Prefix for an emulator that stands for another computer: the load of this one does not slow it down. Empty: not
    allowed here."""
    chrt = shutil.which("chrt")
    command = () if chrt is None else (chrt, "--fifo", str(CONTROL_PRIORITY))
    is_allowed = command and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if is_allowed else ()
