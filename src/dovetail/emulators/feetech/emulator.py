"""The bus: motors behind a pseudo-terminal, with the faults of real buses on request.

with FeetechEmulator(FeetechEmulatorConfig(calibration_file="so101.json")) as bus:
    bus.port                                  # "/dev/pts/5", for LeRobot's `port`
    bus.misbehave(lose=0.1, dead=(3,))        # from now on
    bus.motor(2).shaft                        # where a joint really is, in ticks
    bus.turn(2, 1800.0)                       # a person moves the joint
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import termios
import threading
import time
import tty
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.emulators.feetech.arm import JOINTS, OFFSETS, RANGES, EmulatedArm
from dovetail.emulators.feetech.motor import OVERLOAD, Motor
from dovetail.emulators.feetech.motor_scripts import scripted_shaft
from dovetail.emulators.feetech.packets import (
    ACTION,
    BROADCAST,
    PING,
    READ,
    REG_WRITE,
    SYNC_READ,
    SYNC_WRITE,
    WRITE,
    Instruction,
    PacketReader,
    status,
)

__all__ = ["JOINTS", "FeetechEmulator", "FeetechEmulatorConfig", "Misbehavior"]

_BAUD_RATES = (1_000_000, 500_000, 250_000, 128_000, 115_200, 57_600, 38_400, 19_200)
_POLL_S = 0.05


class Misbehavior(Config):
    """Faults of the bus, each with its probability or its motors."""

    lose: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that an answer is lost."""
    corrupt: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that an answer has a wrong checksum."""
    shorten: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that an answer to a read has a byte less than was asked for, with a valid checksum."""
    garbage: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that random bytes come before an answer."""
    delay_s: float = Field(default=0.0, ge=0.0)
    """Added to the time of each answer, in seconds."""
    dead: tuple[int, ...] = ()
    """Ids of motors that do not answer and do not move on command."""
    overload: tuple[int, ...] = ()
    """Ids of motors that report an overload and have switched their torque off."""


class FeetechEmulatorConfig(Config):
    """An emulated bus of six STS3215 motors, as in an SO-101."""

    mode: Literal["follower", "leader"] = "follower"
    """A follower falls without torque. A leader is moved by `script`."""
    script: Literal["none", "wave", "reach"] = "none"
    """How a person moves the leader: not at all, all joints by sine waves, or from pose to pose with stops."""
    script_amplitude: float = Field(default=200.0, ge=0.0, le=270.0)
    """Amplitude of the script in ticks; a turn has 4096. The gripper of `reach` opens and closes by 2.9 times as much."""
    script_period_s: float = Field(default=6.0, gt=0.0)
    """Period of the script in seconds."""
    link: str | None = None
    """Path of a symbolic link to the pseudo-terminal. Null: none."""
    calibration_file: str | None = None
    """Write LeRobot's calibration of these motors to this file. Null: do not write it."""
    falls: bool = True
    """Whether joints of a follower fall without torque."""
    seed: int = 0
    """Seed of the random faults."""
    faults: Misbehavior = Misbehavior()
    """Faults from the start."""


class FeetechEmulator:
    """Six STS3215 motors of an SO-101 on a pseudo-terminal."""

    Config: ClassVar[type[FeetechEmulatorConfig]] = FeetechEmulatorConfig

    def __init__(self, config: FeetechEmulatorConfig) -> None:
        self._config = config
        self._faults = config.faults
        self._random = random.Random(config.seed)
        self._arm = EmulatedArm(falls=config.falls and config.mode == "follower")
        self._lock = threading.Lock()
        self._master = self._slave = -1
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._started_s = self._moved_s = 0.0
        self.num_packets = self.num_writes = 0

    @property
    def port(self) -> str:
        return self._config.link or os.ttyname(self._slave)

    def motor(self, id_: int) -> Motor:
        """A motor as it is now. Tests may read it and change its registers."""
        with self._lock:
            self._advance()
            return self._arm.motors[id_]

    def turn(self, id_: int, shaft: float) -> None:
        """Move a joint by hand to this angle of its encoder, in ticks."""
        with self._lock:
            self._arm.turn(id_, shaft)

    def misbehave(self, **faults: float | tuple[int, ...]) -> None:
        """Replace all faults. Without arguments: behave."""
        with self._lock:
            self._faults = Misbehavior.model_validate(faults)
            for id_, motor in self._arm.motors.items():
                motor.error = OVERLOAD if id_ in self._faults.overload else 0

    def calibration(self) -> dict[str, dict[str, int]]:
        """In LeRobot's form."""
        return {
            joint: {
                "id": i + 1,
                "drive_mode": 0,
                "homing_offset": OFFSETS[i],
                "range_min": low,
                "range_max": high,
            }
            for i, (joint, (low, high)) in enumerate(zip(JOINTS, RANGES, strict=True))
        }

    def start(self) -> None:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        # until a client sets the speed, the line has that of the motors
        _set_speed(self._slave, _BAUD_RATES[0])
        if self._config.link is not None:
            _make_link(self._config.link, os.ttyname(self._slave))
        if self._config.calibration_file is not None:
            path = Path(self._config.calibration_file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.calibration(), indent=4))
        self.misbehave(**self._config.faults.model_dump())
        self._started_s = self._moved_s = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="feetech", daemon=True)
        self._thread.start()

    def describe(self) -> Sequence[str]:
        lines = [self.port, f"SO-101 {self._config.mode}: motors 1 to 6, STS3215, 1 Mbaud"]
        if self._config.calibration_file is not None:
            lines.append(f"calibration: {self._config.calibration_file}")
        return lines

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        for file in (self._master, self._slave):
            if file >= 0:
                os.close(file)
        self._master = self._slave = -1
        if self._config.link is not None and Path(self._config.link).is_symlink():
            Path(self._config.link).unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        reader = PacketReader()
        while not self._closing.is_set():
            readable, _, _ = select.select([self._master], [], [], _POLL_S)
            with self._lock:
                self._advance()
            if not readable:
                continue
            try:
                data = os.read(self._master, 4096)
            except OSError:
                return
            for packet in reader.feed(data):
                self._answer(packet)

    def _advance(self) -> None:
        now_s = time.monotonic()
        duration_s, self._moved_s = now_s - self._moved_s, now_s
        config = self._config
        if config.mode == "leader" and config.script != "none":
            for id_, motor in self._arm.motors.items():
                if motor.has_torque or id_ in self._faults.dead:
                    continue
                low, high = RANGES[id_ - 1]
                moved = scripted_shaft(
                    config.script,
                    joint=id_,
                    time_s=(now_s - self._started_s) / config.script_period_s,
                    amplitude=config.script_amplitude,
                )
                self._arm.turn(id_, (low + high) / 2 + OFFSETS[id_ - 1] + moved)
        self._arm.advance(duration_s, dead=self._faults.dead)

    def _answer(self, packet: Instruction) -> None:
        with self._lock:
            self.num_packets += 1
            self.num_writes += packet.code in (WRITE, REG_WRITE, ACTION, SYNC_WRITE)
            answers = self._execute(packet) if self._speed_fits() else []
            faults = self._faults
        line = b""  # the motors answer one right after the other
        for answer in answers:
            if self._random.random() < faults.lose:
                continue
            if faults.delay_s:
                self._send(line)
                line = b""
                self._closing.wait(faults.delay_s)
            if self._random.random() < faults.corrupt:
                answer = answer[:-1] + bytes((answer[-1] ^ 0x55,))
            if self._random.random() < faults.garbage:
                answer = self._random.randbytes(self._random.randint(1, 6)) + answer
            line += answer
        self._send(line)

    def _send(self, line: bytes) -> None:
        if line:
            with contextlib.suppress(OSError):
                os.write(self._master, line)

    def _execute(self, packet: Instruction) -> list[bytes]:
        """Answers in the order of the motors. Packets with too few parameters are ignored."""
        self._advance()
        code, data = packet.code, packet.parameters
        alive = {motor.id: motor for id_, motor in self._arm.motors.items() if id_ not in self._faults.dead}
        if code == SYNC_READ and len(data) >= 2:
            found = [alive[id_] for id_ in data[2:] if id_ in alive]
            return [self._status(motor, motor.read(data[0], data[1])) for motor in found]
        if code == SYNC_WRITE and len(data) >= 2:
            size = data[1] + 1
            for at in range(2, len(data) - size + 1, size):
                if data[at] in alive:
                    alive[data[at]].write(data[0], data[at + 1 : at + size])
            return []
        if code == ACTION:
            for each in alive.values():
                if packet.id in (each.id, BROADCAST):
                    each.run_registered()
        if code == PING and packet.id == BROADCAST:
            return [self._status(each) for _, each in sorted(alive.items())]
        motor = alive.get(packet.id)
        if motor is None:
            return []
        if code in (PING, ACTION):
            return [self._status(motor)]
        if code == READ and len(data) == 2:
            return [self._status(motor, motor.read(data[0], data[1]))]
        if code in (WRITE, REG_WRITE) and len(data) >= 2:
            answers = [self._status(motor)]
            (motor.write if code == WRITE else motor.register_write)(data[0], data[1:])
            return answers if motor.get("Response_Status_Level") else []
        return []

    def _status(self, motor: Motor, data: bytes = b"") -> bytes:
        if data and self._random.random() < self._faults.shorten:
            data = data[:-1]
        return status(motor.id, motor.error, data)

    def _speed_fits(self) -> bool:
        """A motor hears only packets at its own baud rate. All six have the same."""
        rate = self._arm.motors[1].get("Baud_Rate")
        return rate < len(_BAUD_RATES) and _speed(self._slave) in (None, _BAUD_RATES[rate])


_SPEEDS = {termios.B1000000: 1_000_000, termios.B500000: 500_000, termios.B115200: 115_200, termios.B57600: 57_600}
_SPEEDS |= {termios.B38400: 38_400, termios.B19200: 19_200}


def _speed(terminal: int) -> int | None:
    """Baud rate of the line; None: one that this table does not have."""
    return _SPEEDS.get(termios.tcgetattr(terminal)[5])


def _set_speed(terminal: int, baud: int) -> None:
    attributes = termios.tcgetattr(terminal)
    code = next(code for code, rate in _SPEEDS.items() if rate == baud)
    attributes[4] = attributes[5] = code
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _make_link(path: str, target: str) -> None:
    link = Path(path)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise UsageError(f"{path} exists and is no symbolic link. Choose another `link`")
    link.symlink_to(target)
