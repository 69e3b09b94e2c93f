"""One robot for several connections: one call at a time, stops that wait for nothing, and the watchdog."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .description import Description

__all__ = ["Refused", "Sample", "ServedRobot"]

_log = logging.getLogger("dovetail_robot")
_NS_PER_S = 1_000_000_000
_MIN_WATCHDOG_S = 0.2
_WATCHDOG_TICKS = 5


class Refused(Exception):
    """A request that the robot did not execute, with the reason in one line."""


@runtime_checkable
class _OpensStop(Protocol):
    """A robot with a second connection to its controller, for stops: an object with `stop` and `close`."""

    def open_stop(self) -> Any: ...


@runtime_checkable
class _Closes(Protocol):
    def close(self) -> None: ...


class Sample(NamedTuple):
    """One observation, with times of `time.monotonic_ns()` of this computer."""

    time_ns: int
    values: dict[str, Any]
    captured_ns: dict[str, int]


class ServedRobot:
    """Calls the robot's methods. `stop` never waits for `observe` or `send`, which may hang."""

    def __init__(self, robot: Any, *, watchdog_s: float | None = None) -> None:
        self._robot = robot
        spec = robot.spec() if callable(robot.spec) else robot.spec
        self.description = Description.of(spec)
        default_s = max(_MIN_WATCHDOG_S, _WATCHDOG_TICKS / self.description.control_hz)
        self.watchdog_s = default_s if watchdog_s is None else watchdog_s
        if not 0.0 < self.watchdog_s <= 10.0:
            raise ValueError(f"the watchdog time is {self.watchdog_s} s, expected more than 0 and at most 10 s")
        self._stop_connection = robot.open_stop() if isinstance(robot, _OpensStop) else None
        self._stop_robot: Callable[[], Any] = (self._stop_connection or robot).stop
        self._calls = threading.Lock()  # held during observe and send
        self._state = threading.Lock()  # held for moments
        self._num_stops = self._num_commands = 0
        self._command_ns = 0
        self._is_moving = False  # a command came after the last stop
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @property
    def is_moving(self) -> bool:
        """Whether a command came after the last stop."""
        return self._is_moving

    def start(self) -> None:
        self._watchdog.start()

    def close(self) -> None:
        """Stop the robot for the last time, and close it if it can be closed."""
        self._closed.set()
        try:
            self.stop()
        finally:
            for one in (self._stop_connection, self._robot):
                if isinstance(one, _Closes):
                    one.close()

    def observe(self) -> Sample:
        with self._calls:
            began_ns = time.monotonic_ns()
            try:
                seen = dict(self._robot.observe())
            except Exception as error:  # any robot: the client gets the reason
                raise Refused(f"observe() failed: {_line(error)}") from error
        time_ns, captured = seen.pop("time_ns", began_ns), seen.pop("captured_ns", {})
        now_ns = time.monotonic_ns()
        for key, stamp in [("time_ns", time_ns), *captured.items()]:
            if not isinstance(stamp, (int, np.integer)) or not 0 <= stamp <= now_ns:
                raise Refused(
                    f"observe() returned {stamp!r:.40} as the time of '{key}', expected time.monotonic_ns()"
                )
        values = {key: self._array(key, seen) for key in self.description.shapes}
        if unknown := [*(set(seen) - set(values)), *(set(captured) - set(values))]:
            raise Refused(f"observe() returned '{unknown[0]}', which is not in the spec")
        return Sample(int(time_ns), values, {key: int(stamp) for key, stamp in captured.items()})

    def send(self, action: Any, *, deadline_ns: int, check: Callable[[], None]) -> Any:
        """Execute one command and return the executed action. `check` raises Refused if the command has become invalid."""
        if (problem := self.description.action_problem(action)) is not None:
            self.stop()
            raise Refused(f"the robot was stopped: {problem}")
        with self._calls:  # a call that hangs may have delayed this command
            with self._state:
                check()
                late_ns = time.monotonic_ns() - deadline_ns
                if late_ns > 0:
                    raise Refused(f"the command arrived {late_ns / 1e6:.0f} ms too late and was not executed")
                before = self._num_stops
                self._num_commands += 1
                self._command_ns, self._is_moving = time.monotonic_ns(), True
            try:
                executed = self._robot.send(action.copy())
            except Exception as error:
                self.stop()
                raise Refused(f"send() failed: {_line(error)}") from error
            if (
                self._num_stops != before
            ):  # stopped meanwhile: the command may have reached the robot after the stop
                self.stop()
                raise Refused("the robot was stopped while send() was under way")
        executed = action if executed is None else np.asarray(executed, np.float32)
        if executed.shape != action.shape:
            self.stop()
            raise Refused(f"send() returned shape {list(executed.shape)}, expected {list(action.shape)}")
        return executed

    def stop(self) -> None:
        """Stop the robot. Any thread may call it."""
        with self._state:
            self._num_stops += 1
            num_commands = self._num_commands
        self._stop_robot()
        with self._state:
            if self._num_commands == num_commands:
                self._is_moving = False

    def _watch(self) -> None:
        failed = False
        while not self._closed.wait(self.watchdog_s / 4):
            silent_s = (time.monotonic_ns() - self._command_ns) / _NS_PER_S
            if not self._is_moving or silent_s <= self.watchdog_s:
                continue
            try:
                self.stop()
                _log.warning("stopped the robot: no command for %.2f s", silent_s)
                failed = False
            except Exception as error:  # tried again
                if not failed:
                    _log.error("THE ROBOT DID NOT STOP: stop() failed: %s", _line(error))
                failed = True

    def _array(self, key: str, seen: dict[str, Any]) -> Any:
        shape, dtype = self.description.shapes[key]
        if key not in seen:
            raise Refused(f"observe() returned no '{key}'")
        array = np.asarray(seen[key])
        if dtype == "float32" and array.dtype.kind in "fiu":
            array = array.astype(np.float32)
        if array.shape != shape or array.dtype != dtype:
            got = f"{array.dtype}{list(array.shape)}"
            raise Refused(f"observe() returned '{key}' as {got}, but the spec says {dtype}{list(shape)}")
        return array


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
