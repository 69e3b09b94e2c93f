"""Abilities of robots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dovetail.core.types import Array

if TYPE_CHECKING:
    from dovetail.core.contracts import GuardedRobot

__all__ = [
    "BringsTask",
    "DescribesLink",
    "HasWorld",
    "HearsAcknowledgement",
    "IndependentStop",
    "LooksOnly",
    "PreparesReset",
    "Probes",
    "StopConnection",
    "UsesBuffers",
]


@runtime_checkable
class UsesBuffers(Protocol):
    """A robot that writes each camera frame into a given buffer, which saves a copy."""

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        """Write each new frame of camera `key` into `next_buffer(key)`."""


class StopConnection(Protocol):
    """A second connection to an arm. See `IndependentStop`."""

    def stop(self) -> None:
        """Stop the arm. Raise an exception if the arm did not get the command."""

    def close(self) -> None: ...


@runtime_checkable
class IndependentStop(Protocol):
    """A robot that can be stopped over a second connection, even while another process controls it and hangs.

        def open_stop(self) -> StopConnection:
            return MyStopConnection(self._config.address)     # for example the controller's dashboard port

    The guard process builds its own robot object, calls `open_stop` before the arm may move, and keeps the connection open.
    Without this ability the guard first ends the control process, then calls `stop()` of its own robot object.
    """

    def open_stop(self) -> StopConnection: ...


@runtime_checkable
class DescribesLink(Protocol):
    """A robot that describes its connection, for `dovetail doctor` and `dovetail robot show`."""

    def describe_link(self) -> str:
        """One line without a period, such as the round trip and the clock offset. Does not move the robot."""


@runtime_checkable
class LooksOnly(Protocol):
    """A robot whose connection holds it with torque or configures it, and which can also be observed without that: for
    `dovetail doctor`, `dovetail robot show` and leader arms."""

    def look_only(self) -> None:
        """Called before the first `observe`: nothing that this object does may move, energize or release the robot. `send`
        raises RobotError from now on."""


@runtime_checkable
class HearsAcknowledgement(Protocol):
    """A robot with errors of its own that only a person may clear."""

    def acknowledged(self) -> None:
        """Clear the robot's own errors. Called only after a person has acknowledged a latched fault; the fault stays if this
        raises."""


@runtime_checkable
class PreparesReset(Protocol):
    """A robot that may move before the task's reset, for example by its own controller back to its start joints."""

    def prepare_reset(self, robot: GuardedRobot, *, tick: Callable[[], None]) -> None:
        """Called before the reset of each episode. May take long.

        `robot` is this robot behind the safety filter. Every motion that the driver commands itself goes through it: one
        `robot.observe()` and one `robot.send(action)` per tick, then `tick()`, which waits for the next tick and may raise
        to end the motion. Call `robot.reset()` after a motion that the robot's own controller has made.
        """


@runtime_checkable
class Probes(Protocol):
    """A robot with extra columns to record beside each observation, such as a simulator's state."""

    def probe(self) -> Mapping[str, Array]: ...


@runtime_checkable
class BringsTask(Protocol):
    """A robot that contains its task, as a Gymnasium environment does. Class attribute."""

    brings_task: bool


@runtime_checkable
class HasWorld(Protocol):
    """A robot in a MuJoCo world, which can be rendered from any camera."""

    world: Any
