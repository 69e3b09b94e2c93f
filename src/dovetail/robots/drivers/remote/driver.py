"""A robot on another computer, behind Dovetail's own robot protocol (`robot_side`).

Observing does not take control. The first command does, and only one client at a time can. The robot's computer stops the
robot if this connection is lost or commands cease. `stop` and `open_stop` have connections of their own.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, ClassVar

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.drivers.remote.clock import ClockOffset
from dovetail.robots.drivers.remote.connection import Connection, StopLink, read_token_setting
from dovetail.robots.drivers.remote.robot_side.wire import Message
from dovetail.robots.drivers.remote.settings import RemoteRobotConfig, RemoteSpecConfig

__all__ = ["RemoteRobot"]

_NUM_PINGS = 8  # to estimate the clock offset after connecting
_NS_PER_S = 1_000_000_000


class RemoteRobot:
    """A robot on another computer."""

    Config: ClassVar[type[RemoteRobotConfig]] = RemoteRobotConfig

    def __init__(self, config: RemoteRobotConfig, *, task: Any = None) -> None:
        self._config = config
        self._spec = config.robot_spec()
        self._max_body = sum(
            math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in self._spec.observation.values()
        )
        self._lock = threading.Lock()  # one request at a time
        self._connection: Connection | None = None
        self._clock = ClockOffset(max_error_s=config.max_clock_error_s)
        self._pictures: dict[
            str, tuple[Array, int | None]
        ] = {}  # the newest of each camera, with its capture time
        self._known_token: bytes | None = None
        self._stop_lock = threading.Lock()
        self._stop_link: StopLink | None = None
        self._num_stops = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        with self._lock:
            answer = self._request(Message("observe"), "observation", max_body=self._max_body)
            try:
                return self._observation(answer)
            except RobotError:
                self._close()
                raise

    def send(self, action: Array) -> Array:
        with self._lock:
            self._connected()
            deadline_ns = self._clock.to_robots(time.monotonic_ns()) + round(self._config.timeout_s * _NS_PER_S)
            command = {"stops": self._num_stops, "deadline_ns": deadline_ns}
            sent = Message("send", command, {"action": np.array(action, np.float32)})
            answer = self._request(sent, "sent", max_body=4 * self._spec.action.shape[0])
            executed = answer.arrays.get("executed")
            if executed is None or executed.shape != self._spec.action.shape:
                self._close()
                raise self._error("its answer to a command has no executed action")
            return np.array(executed, np.float32)

    def stop(self) -> None:
        connection = self._connection
        with self._stop_lock:
            self._num_stops += 1  # first: the robot refuses a command that is under way
            num_stops = self._num_stops
            if self._stop_link is None:
                self._stop_link = self.open_stop(connect=False)
            link = self._stop_link
        link.stop_session(connection.session if connection else "", num_stops)

    def open_stop(self, *, connect: bool = True) -> StopLink:
        """A second connection, for stops. It works while another process controls the robot and hangs."""
        config = self._config
        link = StopLink(config.address, self._token(), connect_timeout_s=config.connect_timeout_s)
        if connect:
            link.open()
        return link

    def close(self) -> None:
        """Close the connections. The robot's computer stops the robot if this object controlled it."""
        connection = self._connection
        if connection is not None:
            connection.disconnect()  # a request in another thread returns
        with self._lock:
            self._close()
        with self._stop_lock:
            if self._stop_link is not None:
                self._stop_link.close()
            self._stop_link = None

    def describe_link(self) -> str:
        """For people: the times of the connection. Connects if necessary."""
        with self._lock:
            connection = self._connected()
            connection.request(Message("ping"), "pong", timeout_s=self._config.timeout_s, clock=self._clock)
        watchdog_s = connection.welcome.fields.get("watchdog_s")
        if isinstance(watchdog_s, bool) or not isinstance(watchdog_s, int | float) or not 0.0 <= watchdog_s < 1e9:
            raise self._error("its welcome has no valid 'watchdog_s'")
        return (
            f"round trip {self._clock.round_trip_ns / 1e6:.2f} ms, clock offset {self._clock.offset_ns / 1e9:+.6f} s "
            f"±{self._clock.error_ns / 1e6:.2f} ms, the robot stops itself after {watchdog_s:g} s without a command"
        )

    # ---- connection; call with the lock held

    def _request(self, message: Message, expected: str, *, max_body: int) -> Message:
        connection = self._connected()
        try:
            answer = connection.request(
                message, expected, timeout_s=self._config.timeout_s, max_body=max_body, clock=self._clock
            )
            self._clock.check()
        except RobotError:
            self._close()
            raise
        return answer

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        config = self._config
        connection = Connection(config.address, self._token(), role="robot", timeout_s=config.connect_timeout_s)
        try:
            self._check_spec(connection.welcome.fields.get("spec"))
            self._clock = ClockOffset(max_error_s=config.max_clock_error_s)
            for _ in range(_NUM_PINGS):
                connection.request(Message("ping"), "pong", timeout_s=config.connect_timeout_s, clock=self._clock)
            self._clock.check()
        except RobotError:
            connection.close()
            raise
        self._pictures, self._connection = {}, connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _check_spec(self, data: Any) -> None:
        theirs, ours = RemoteSpecConfig.from_robot(data).robot_spec().to_json(), self._spec.to_json()
        if different := [key for key in ours if ours[key] != theirs.get(key)]:
            raise self._error(
                f"its spec differs from the config in {', '.join(different)}. "
                f"Write the config again: dovetail robot spec {self._config.address}"
            )

    # ---- observations

    def _observation(self, answer: Message) -> Observation:
        fields, sent_ns = answer.fields, answer.integer("sent_ns")
        time_ns = self._to_ours(fields.get("time_ns"), sent_ns, "the observation")
        stamps, known = fields.get("captured_ns"), fields.get("known")
        if not isinstance(stamps, dict) or not isinstance(known, list):
            raise self._error("its observation has no capture times")
        values: dict[str, Array] = {}
        captured_ns: dict[str, int] = {}
        for key, spec in self._spec.observation.items():
            stamp: int | None
            if key in known and key in self._pictures:
                values[key], stamp = self._pictures[key]
            else:
                array = answer.arrays.get(key)
                if array is None:
                    raise self._error(f"its observation has no '{key}'")
                if array.shape != spec.shape or array.dtype != spec.dtype:
                    got = f"{array.dtype}{list(array.shape)}"
                    raise self._error(f"its observation '{key}' is {got} instead of {spec.describe()}")
                stamp = self._to_ours(stamps[key], sent_ns, f"'{key}'") if key in stamps else None
                values[key] = array
                if array.ndim == 3:
                    array.setflags(write=False)  # returned again until there is a new one
                    self._pictures[key] = (array, stamp)
            if stamp is not None:
                captured_ns[key] = stamp
        return Observation(time_ns=time_ns, values=values, captured_ns=captured_ns)

    def _to_ours(self, robot_ns: Any, sent_ns: int, what: str) -> int:
        if type(robot_ns) is not int or robot_ns < 0:
            raise self._error(f"the time of {what} is no time")
        if robot_ns > sent_ns:
            raise self._error(
                f"the time of {what} is {(robot_ns - sent_ns) / 1e6:.3f} ms ahead of the robot's clock"
            )
        return self._clock.to_ours(robot_ns)

    def _token(self) -> bytes:
        """Read once: a stop must not fail because the file is gone."""
        if self._known_token is None:
            self._known_token = read_token_setting(self._config.token_file, self._config.token_env)
        return self._known_token

    def _error(self, reason: str) -> RobotError:
        return RobotError(f"robot at {self._config.address}: {reason}")
