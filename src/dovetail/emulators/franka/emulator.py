"""A Franka arm behind the HTTP server of SERL and HIL-SERL, emulated.

    with FrankaEmulator(FrankaEmulatorConfig(port=0)) as emulator:
        robot = FrankaRobot(FrankaConfig(address=emulator.address, gripper="hil_serl_franka"))
        emulator.misbehave("half", path="/getstate")

In real time, a thread advances the physics. In lockstep, only the driver's requests do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from dovetail.config.plugins import resolve, settings_of
from dovetail.core.errors import UsageError
from dovetail.emulators.franka.arm import CYCLE_NS, EmulatedArm
from dovetail.emulators.franka.endpoints import Endpoints
from dovetail.emulators.franka.misbehavior import Misbehavior
from dovetail.emulators.franka.server import PoseServer
from dovetail.emulators.franka.settings import FrankaEmulatorConfig
from dovetail.robots.drivers.franka.emulator_token import make_token, remove_token

__all__ = ["FrankaEmulator", "FrankaEmulatorConfig"]

_SLEEP_S = 0.002
_MOST_CYCLES = 20  # at once, so that no request waits long
_MAX_BEHIND_S = 0.1  # of real time: an arm that cannot keep up loses the time


class _Closed(Exception):
    pass


class FrankaEmulator:
    """See the module and `Emulator`."""

    Config: ClassVar[type[FrankaEmulatorConfig]] = FrankaEmulatorConfig

    def __init__(self, config: FrankaEmulatorConfig) -> None:
        self.config = config
        self.arm = EmulatedArm(config, _scene(config.task))
        self.rules = Misbehavior()
        self.rules.add_text(config.misbehave)
        self.endpoints = Endpoints(config, self.arm, self.rules, self._wait)
        self._closing = threading.Event()
        self._server: PoseServer | None = None
        self._thread = threading.Thread(target=self._run, name="franka-physics")
        self._began_s = 0.0

    @property
    def address(self) -> str:
        assert self._server is not None, "start() comes first"
        return f"{self.config.host}:{self._server.server_port}"

    @property
    def token(self) -> str:
        return self.endpoints.token

    @property
    def real_time_factor(self) -> float:
        """Emulated time per real time since the start."""
        return self.arm.time_ns * 1e-9 / max(time.monotonic() - self._began_s, 1e-9)

    def start(self) -> None:
        config = self.config
        try:
            self._server = PoseServer(
                (config.host, config.port), self.endpoints.call, self.rules, keep_alive=config.keep_alive
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen at {config.host}:{config.port}: {error.strerror}. Set port=0"
            ) from error
        self.endpoints.token = make_token(self.address, config.token)
        self._began_s = time.monotonic()
        if not config.lockstep:
            self._thread.start()
        self._server.start()

    def describe(self) -> Sequence[str]:
        config = self.config
        how = "in lockstep with the driver" if config.lockstep else f"at {config.time_scale:g} times real time"
        driver = "none" if config.gripper == "none" else f"{config.server}_{config.gripper}"
        scene = f", scene of {config.task}" if config.task else ""
        return (f"http://{self.address}", f"time passes {how}{scene}; robot.gripper={driver}")

    def misbehave(self, kind: str, **settings: Any) -> None:
        """As the endpoint `/emulator/misbehave`."""
        self.endpoints.misbehave({"kind": kind, **settings})

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            remove_token(self.address)
            self._server.close()
            self._server = None
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        scale = self.config.time_scale
        last_s, owed_ns = time.monotonic(), 0.0
        while not self._closing.wait(_SLEEP_S):
            now_s = time.monotonic()
            owed_ns += min(now_s - last_s, _MAX_BEHIND_S) * 1e9 * scale
            last_s = now_s
            owed_ns = min(owed_ns, _MAX_BEHIND_S * 1e9 * scale)
            while owed_ns >= CYCLE_NS and not self._closing.is_set():
                num = min(int(owed_ns // CYCLE_NS), _MOST_CYCLES)
                self.arm.advance(num)
                owed_ns -= num * CYCLE_NS

    def _wait(self, seconds: float) -> None:
        """Wait for emulated time to pass."""
        if self.config.lockstep:
            self.arm.advance(round(seconds * 1e9 / CYCLE_NS))
            return
        until_ns = self.arm.time_ns + round(seconds * 1e9)
        while self.arm.time_ns < until_ns:
            if self._closing.wait(min(_SLEEP_S, seconds / self.config.time_scale)):
                raise _Closed


def _scene(task: str | None) -> Any:
    if task is None:
        return None
    return resolve("task", task)(settings_of("task", task)())
