"""Any LeRobot robot, plugins included. LeRobot runs in a process of its own: see `dovetail_bridge`.

`stop()` keeps the torque and holds the arm where it is, because an SO-101 falls without torque. It uses a connection of its
own, so it works from any thread and process, and while another call hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dovetail.core.errors import RobotError, shown
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.drivers.lerobot._client import BridgeLink, BridgeProcess, NoBridge, is_time
from dovetail.robots.drivers.lerobot._layout import layout
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message
from dovetail.robots.drivers.lerobot.settings import LeRobotConfig

__all__ = ["LeRobotRobot"]

_STOP_S = 1.0
_AHEAD_NS = 1_000_000
_MAX_SPEED_FACTOR = 5.0  # a joint that is pushed or falls may exceed its max_speed
_SAME = 1e-4  # of an axis: LeRobot executed what was asked
_LARGEST = 1e30  # of an executed action: float32 in all units


class LeRobotRobot:
    """A LeRobot robot such as an SO-101, in a process with LeRobot's own interpreter."""

    Config: ClassVar[type[LeRobotConfig]] = LeRobotConfig

    def __init__(self, config: LeRobotConfig, *, task: Any = None) -> None:
        self._config = config
        self._layout = layout(config)
        self._process = BridgeProcess(config, config.settings_of_bridge())
        self._link: BridgeLink | None = None
        self._lock = threading.Lock()  # held during a request
        self._frames: dict[str, Array] = {}  # the last one of each camera
        self._seen: dict[str, Array] = {}  # the last numbers, and when they were measured
        self._seen_ns = 0
        self._next_buffer: Callable[[str], Array] | None = None
        self._looks = False

    @property
    def spec(self) -> RobotSpec:
        return self._layout.spec

    def look_only(self) -> None:
        """Connect without LeRobot's `configure`, which switches the torque off and on, and without a hold."""
        self._looks = True

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        self._next_buffer = next_buffer

    def observe(self) -> Observation:
        with self._lock:
            asked_ns = time.monotonic_ns()
            message = Message("observe", {"cameras": self._layout.cameras})
            answer = self._request(message, buffer_for=self._buffer)
            return self._observation(answer, asked_ns)

    def send(self, action: Array) -> Array:
        if self._looks:
            raise RobotError(f"'{self._config.robot}' is connected only to measure")
        ours = np.clip(action, *self._layout.spec.action.bounds).astype(np.float64)
        if not np.isfinite(ours).all():
            raise RobotError(f"the action is not finite: {ours.tolist()}")
        plan = self._layout
        now_ns = time.monotonic_ns()
        fields = {
            "keys": list(plan.action_keys),
            "sent_ns": now_ns,
            "deadline_ns": now_ns + int(self._config.timeout_s * 1e9),
        }
        theirs = (ours - plan.action_offset) / plan.action_scale
        with self._lock:
            answer = self._request(Message("send", fields, {"values": theirs}))
        executed = answer.fields.get("executed")
        if not isinstance(executed, list) or len(executed) != len(ours):
            raise self._wrong("an executed action of another size")
        if not all(type(value) in (float, int) and abs(value) <= _LARGEST for value in executed):  # NaN is not
            raise self._wrong("an executed action that is not finite")
        sent = plan.action_scale * np.array(executed, np.float64) + plan.action_offset
        # rounding in the conversion must not lead out of the limits
        return np.where(np.abs(sent - ours) <= _SAME, ours, sent).astype(np.float32)

    def stop(self) -> None:
        """Hold where the arm is. Without a bridge there is nothing that moves the arm: its motors hold their last target."""
        try:
            link = self._process.connect("stop", start=False)
        except NoBridge as error:
            if not error.crashed:
                return
            raise RobotError(
                f"{error}: position motors hold their last target. Use the arm's power switch if it moves"
            ) from error
        try:
            link.request(Message("stop"), timeout_s=_STOP_S)
        finally:
            link.close()

    def open_stop(self) -> _StopLink:
        return _StopLink(self._process.connect("stop", start=True))

    def close(self) -> None:
        """The bridge then holds the arm, and ends after `linger_s`."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._frames.clear()

    def _request(
        self, message: Message, *, buffer_for: Callable[[str, tuple[int, ...], str], Array | None] | None = None
    ) -> Message:
        if self._link is not None and not self._link.is_open:
            self._drop()
        if self._link is None:
            self._connect()
            if "sent_ns" in message.fields:
                raise RobotError(f"{self._process.what} was not connected: observe before the first command")
        assert self._link is not None
        return self._link.request(message, timeout_s=self._config.timeout_s, buffer_for=buffer_for)

    def _connect(self) -> None:
        """Read the features before the device is connected: a robot that does not fit never gets torque."""
        timeout_s, plan = self._config.start_timeout_s, self._layout
        link = self._process.connect("control", start=True)
        try:
            features = link.request(Message("open"), timeout_s=timeout_s).fields.get("features")
            if not isinstance(features, dict):
                raise self._wrong("no features")
            if (problem := plan.check(features, self._config.robot)) is not None:
                raise RobotError(f"the settings do not fit LeRobot's device: {problem}")
            fields = {"keys": list(plan.value_keys), "holds": dict(plan.holds), "looks": self._looks}
            link.request(Message("connect", fields), timeout_s=timeout_s)
        except BaseException:
            link.close()
            raise
        self._frames.clear()
        self._link = link

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        if name not in self._layout.cameras or self._next_buffer is None:
            return None
        return self._next_buffer(name)

    def _observation(self, answer: Message, asked_ns: int) -> Observation:
        plan, now_ns = self._layout, time.monotonic_ns()
        time_ns, captured = answer.fields.get("time_ns"), answer.fields.get("captured_ns")
        if type(time_ns) is not int or not asked_ns <= time_ns <= now_ns + _AHEAD_NS:
            raise self._wrong(f"an observation with the time {shown(time_ns, max_chars=40)}")
        theirs = answer.arrays.get("values")
        if theirs is None or theirs.shape != (len(plan.value_keys),) or theirs.dtype != np.float64:
            raise self._wrong("an observation without its numbers")
        ours = (plan.value_scale * theirs + plan.value_offset).astype(np.float32)
        values: dict[str, Array] = {key: ours[part] for key, part in plan.slices.items()}
        self._check_jump(values, time_ns)
        captured_ns = {}
        for name, shape in plan.cameras.items():
            frame = answer.arrays.get(name, self._frames.get(name))
            stamp_ns = captured.get(name) if isinstance(captured, dict) else None
            if frame is None or frame.shape != shape or not is_time(stamp_ns):
                raise self._wrong(f"no frame of camera '{name}'")
            if frame.dtype != np.dtype(plan.spec.observation[name].dtype):
                raise self._wrong(f"a frame of camera '{name}' with dtype {frame.dtype}")
            self._frames[name] = values[name] = frame
            captured_ns[name] = stamp_ns
        return Observation(time_ns=min(time_ns, now_ns), values=values, captured_ns=captured_ns)

    def _check_jump(self, values: dict[str, Array], time_ns: int) -> None:
        """A joint cannot jump. The filter would hold the arm at a wrong measurement, and so move it there."""
        seen, seen_ns = self._seen, self._seen_ns
        self._seen, self._seen_ns = values, time_ns  # also if it is refused: a second one like it is true
        passed_s = (time_ns - seen_ns) / 1e9 + 1.0 / self._config.control_hz
        for part in self._layout.spec.parts:
            if part.kind != "joint_target" or not seen:
                continue
            moved = np.abs(values[part.measured_key] - seen[part.measured_key])[part.measured_slice]
            allowed = _MAX_SPEED_FACTOR * passed_s * np.array(part.max_speed)
            if (moved > allowed).any():
                axis = int(np.argmax(moved / allowed))
                raise RobotError(
                    f"'{part.names[axis]}' seems to have moved by {moved[axis]:.3g} {part.unit} in {passed_s:.3f} s, "
                    f"more than {_MAX_SPEED_FACTOR:g} times its max_speed allows: check its wiring"
                )

    def _wrong(self, what: str) -> RobotError:
        """An answer that does not follow the protocol: this connection cannot be trusted any more."""
        if self._link is not None:
            self._link.close()
        return RobotError(f"{self._process.what} sent {what}")


class _StopLink:
    """The guard's own connection to the bridge."""

    def __init__(self, link: BridgeLink) -> None:
        self._link = link

    def stop(self) -> None:
        self._link.request(Message("stop"), timeout_s=_STOP_S)

    def close(self) -> None:
        self._link.close()
