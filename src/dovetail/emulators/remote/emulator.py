"""`dovetail emulate remote`: an arm with six joints and a gripper behind the robot protocol.

with RemoteEmulator(RemoteEmulatorConfig()) as emulator:
    robot = RemoteRobot(emulator.robot_config())
    emulator.misbehave("garbage")
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.emulators.remote.arm import ARM_FAULTS, EmulatedArm
from dovetail.emulators.remote.bodies import make_body
from dovetail.emulators.remote.server import WIRE_FAULTS, MisbehavingServer
from dovetail.robots.drivers.remote.robot_side.handshake import make_token, read_token
from dovetail.robots.drivers.remote.settings import RemoteRobotConfig

__all__ = ["FAULTS", "RemoteEmulator", "RemoteEmulatorConfig"]

FAULTS = (*ARM_FAULTS, *WIRE_FAULTS)


class RemoteEmulatorConfig(Config):
    """An emulated arm behind the robot protocol."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    body: Literal["simple", "panda", "x5"] = "simple"
    """What moves: six axes with constant speed, or one of our MuJoCo arms."""
    control_hz: float = Field(default=50.0, gt=0.0, le=1000.0)
    """Control ticks per second."""
    cameras: tuple[str, ...] = ()
    """Names of its cameras; `wrist` and `front` for a MuJoCo arm."""
    image_size: tuple[int, int] = (64, 48)
    """Width and height of the pictures in pixels."""
    watchdog_s: float | None = Field(default=None, gt=0.0, le=10.0)
    """Seconds without a command after which the arm stops. Null: five ticks, at least 0.2 s."""
    token_file: Path | None = None
    """File with the token; created if it is missing. Null: a new temporary one."""
    fault: str | None = None
    """How it misbehaves: `garbage`, `drop`, `nan`, `hang_observe` and more; `random`: any of them. Null: not at all."""
    fault_every_s: float = Field(default=5.0, gt=0.0)
    """Seconds between two faults."""
    late_s: float = Field(default=1.0, gt=0.0)
    """Seconds by which the fault `late` delays an answer."""
    seed: int = 0
    """Seed of random faults."""


class RemoteEmulator:
    """See the module."""

    Config: ClassVar[type[RemoteEmulatorConfig]] = RemoteEmulatorConfig

    def __init__(self, config: RemoteEmulatorConfig | None = None) -> None:
        self._config = config = config or RemoteEmulatorConfig()
        if config.fault is not None and config.fault not in (*FAULTS, "random"):
            raise UsageError(
                f"there is no fault '{config.fault}'.{did_you_mean(config.fault, (*FAULTS, 'random'))}"
            )
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: MisbehavingServer | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        config = self._config
        if config.token_file is None:
            self._folder = tempfile.TemporaryDirectory(prefix="dovetail-robot-")
        self.token_file = config.token_file or Path(self._folder.name if self._folder else "") / "robot.token"
        make_token(self.token_file)
        body = make_body(config.body, cameras=config.cameras, image_size=config.image_size)
        self.arm = EmulatedArm(body, control_hz=config.control_hz)
        self._server = MisbehavingServer(
            self.arm,
            late_s=config.late_s,
            seed=config.seed,
            token=read_token(self.token_file),
            host=config.host,
            port=config.port,
            watchdog_s=config.watchdog_s,
        )
        self._server.start()
        if config.fault is not None:
            self._thread = threading.Thread(target=self._misbehave_often, name="faults", daemon=True)
            self._thread.start()

    @property
    def server(self) -> MisbehavingServer:
        assert self._server is not None, "call start() first"
        return self._server

    def misbehave(self, name: str, *, count: int = 1) -> None:
        """Begin a fault of FAULTS. One on the wire spoils `count` answers; one of the arm lasts until `behave`."""
        if name in ARM_FAULTS:
            self.arm.fault = name
        else:
            self.server.misbehave(name, count=count)

    def behave(self) -> None:
        """End all faults."""
        self.arm.fault = ""
        self.server.misbehave("", count=0)

    def robot_settings(self, **changes: Any) -> dict[str, Any]:
        """The `robot` section of a config for this arm."""
        spec = self.server.robot.description.spec
        return {"address": self.server.address, "token_file": str(self.token_file), **spec, **changes}

    def robot_config(self, **changes: Any) -> RemoteRobotConfig:
        return RemoteRobotConfig.from_mapping(self.robot_settings(**changes))

    def describe(self) -> Sequence[str]:
        return (
            self.server.address,
            f"token: {self.token_file}",
            f"config: dovetail robot spec {self.server.address} --token-file {self.token_file}",
        )

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self.arm.fault = ""
            self._server.close()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _misbehave_often(self) -> None:
        rng, config = random.Random(self._config.seed), self._config
        assert config.fault is not None
        while not self._ended.wait(config.fault_every_s):
            self.misbehave(rng.choice(FAULTS) if config.fault == "random" else config.fault)
            if self._ended.wait(config.late_s):
                return
            self.behave()
