"""Abilities of operators, and what a leader arm offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from dovetail.core.types import Array

__all__ = [
    "ChecksDevice",
    "Demonstrates",
    "DrivenFromConsole",
    "DrivesAxes",
    "KeepsPace",
    "Leader",
    "LeadsByPose",
    "MakesDevice",
    "Pauses",
    "Restarts",
    "Resumes",
    "SharesRobot",
    "StartsSlowly",
    "WatchesStop",
]


@runtime_checkable
class Demonstrates(Protocol):
    """An operator with which a person can give demonstrations. Class attribute."""

    demonstrates: bool


@runtime_checkable
class Leader(Protocol):
    """A leader arm: a person moves it by hand, and another arm follows. The constructor does no I/O.

        leader.follow(measured)           # while the policy drives, so that the takeover begins without a jump
        leader.release()                  # the person takes it
        positions = leader.read()

    One thread calls these methods; each may block for up to some 100 ms and connects if necessary. Every method raises
    RobotError if the leader is lost, and the operator must then stop driving.
    """

    @property
    def name(self) -> str:
        """Name of the device, recorded with each episode."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the values that `read` returns. They are compared with the axis names of the follower's action."""

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each value, as in action parts: rad, deg, m or 1."""

    @property
    def can_follow(self) -> bool:
        """Whether it has motors that `follow` can use. False: `follow` does nothing."""

    def read(self) -> Array:
        """Measure the positions now, float64 [len(axes)]."""

    def follow(self, positions: Array) -> None:
        """Move toward these positions, in the order and units of `axes`. Call it once per tick."""

    def release(self) -> None:
        """Let a person move it: motors without torque."""

    def close(self) -> None:
        """Release it and close the connection."""


@runtime_checkable
class LeadsByPose(Protocol):
    """A leader that also measures the pose of its end effector, or several of them, for robots with Cartesian actions."""

    @property
    def poses(self) -> Mapping[str, int]:
        """The name of each arm, and where its pose starts in the values of `read`: x y z in m in its base frame, then the
        quaternion w x y z."""


@runtime_checkable
class StartsSlowly(Protocol):
    """A leader whose first reading may take longer than 10 s, for example because a process starts for it."""

    @property
    def start_timeout_s(self) -> float:
        """Seconds after which a leader without a reading is an error."""


@runtime_checkable
class DrivenFromConsole(Protocol):
    """An operator whose person drives from the console, which starts with the run. Class attribute."""

    driven_from_console: bool


@runtime_checkable
class ChecksDevice(Protocol):
    """An operator with a device at this machine."""

    def check_device(self) -> None:
        """Raise UsageError if the device is missing. Called before the run starts."""


@runtime_checkable
class Pauses(Protocol):
    """An operator with a device: after a pause from elsewhere, its switch must be pressed again."""

    def pause(self) -> None: ...


@runtime_checkable
class Resumes(Protocol):
    """An operator that holds the arm after a lost device until it is resumed."""

    def resume(self) -> None: ...


@runtime_checkable
class Restarts(Protocol):
    """An operator that judges observations: it must forget those from before the episode's first step."""

    def restart(self) -> None: ...


@runtime_checkable
class DrivesAxes(Protocol):
    """An operator that may drive only some axes of the action."""

    @property
    def drives(self) -> Array | None:
        """Mask, bool [A], of the axes that it drives; None: all."""

    def release_pose(self) -> None:
        """Something else moves the arm: start from the measured pose at the next poll."""


@runtime_checkable
class SharesRobot(Protocol):
    """Several operators, each with its part. One of them may be the person at the console or the terminal."""

    def interrupt(self) -> None:
        """All who drive must press their switches again."""


@runtime_checkable
class WatchesStop(Protocol):
    """An operator with a device that has an emergency stop. The class itself may be tested."""

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        """Read the device from now on. Its emergency stop calls `on_emergency` with the operator's name."""


@runtime_checkable
class MakesDevice(Protocol):
    """The class of an operator whose device can be opened without a robot: its STOP is heard while a process starts. The
    constructor takes `device`, which is open and read already (`human.device_reader.DeviceReader`)."""

    name: str

    def make_device(self, config: Any) -> Any:
        """The device for these settings, not open (`human.device_reader.Device`). None: this operator has none."""


@runtime_checkable
class KeepsPace(Protocol):
    """An operator with which a person drives in simulated time, at the speed of the real clock."""

    def keep_pace(self, pace_s: float) -> None: ...
