"""The devices that the bridge serves. Each call is made by one thread at a time: the server holds a lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .discovery import DeviceError, lerobot_version, one_line
from .feetech import check_lengths, drain, wait_for_bytes
from .wire import Array

__all__ = ["Camera", "Robot", "Teleoperator"]

_FRESH_S = 0.5  # age up to which a measured position may be held
_CHECK_S = 0.2  # one motor is asked for its error bits so often


def _features(features: Mapping[str, Any]) -> dict[str, Any]:
    """LeRobot's features as JSON: "float", or the shape of an image."""
    return {name: list(kind) if isinstance(kind, tuple) else "float" for name, kind in features.items()}


def _devices(device: Any, depth: int = 2) -> Iterator[Any]:
    """A device and those inside it: a bimanual robot has one per arm."""
    yield device
    for value in list(vars(device).values()) if depth else ():
        if hasattr(value, "get_observation") or hasattr(value, "get_action"):
            yield from _devices(value, depth - 1)


def _buses(device: Any) -> Iterator[Any]:
    """The serial buses of a device: an SO-101 has one, a bimanual robot one per arm."""
    for one in _devices(device):
        for value in list(vars(one).values()):
            if hasattr(value, "sync_reader") and hasattr(value, "motors"):
                yield value


@contextlib.contextmanager
def _unconfigured(device: Any) -> Iterator[None]:
    """LeRobot's `connect` calls `configure`, which switches the torque off and on: not in this context."""
    for one in _devices(device):
        one.configure = lambda: None
    try:
        yield
    finally:
        for one in _devices(device):
            vars(one).pop("configure", None)


class _Device:
    """What robots and teleoperators share: a connection that never asks on the terminal, and checks of the motors."""

    def __init__(self, device: Any, *, what: str, calibrate_command: str, retries: int, timeout_s: float) -> None:
        self._device = device
        self._retries, self._timeout_s = retries, timeout_s
        self._what = what
        self._calibrate = calibrate_command
        self._next_check_s = 0.0
        self._num_checks = 0
        self.only_looks = False  # connected to measure: nothing may be written to a motor
        self.sleeps = False  # while it waits for its motors: a real-time priority does not block a core

    def measure(self, call: Callable[[], Any]) -> Any:
        """Call; after a communication error again, a few times while the client waits. Buses lose packets now and then."""
        deadline_s = time.monotonic() + 0.5 * self._timeout_s
        for num_left in range(self._retries, -1, -1):
            try:
                return call()
            except ConnectionError:
                if not num_left or time.monotonic() > deadline_s:
                    raise
                self.drain()
        raise AssertionError("unreachable")

    def connect(self, *, looks: bool = False) -> None:
        """`looks`: only to measure: motors and torque stay as they are. A device that is connected to act stays so."""
        if self._device.is_connected:
            if looks or not self.only_looks:
                return
            self._leave()
        self._prepare_buses(looks=looks)
        self.only_looks = looks
        try:
            with _unconfigured(self._device) if looks else contextlib.nullcontext():
                self._device.connect(calibrate=False)  # True would ask on the terminal
        except Exception as error:  # anything of LeRobot or a plugin
            raise DeviceError(f"LeRobot cannot connect {self._what}: {one_line(error)}") from error
        try:
            calibrated = self._device.is_calibrated
        except Exception as error:  # as above
            raise DeviceError(f"LeRobot cannot read the calibration of {self._what}: {one_line(error)}") from error
        if not calibrated:
            with contextlib.suppress(Exception):
                self.disconnect()
            raise self._mismatch()

    def _prepare_buses(self, *, looks: bool) -> None:
        """Before LeRobot switches the torque on: check the calibration, and set each target to the present position.

        Otherwise the motors would jump to the target of their last use, or to one of another calibration. `looks`: write
        nothing.
        """
        buses = list(_buses(self._device))
        num_sleeping = sum(wait_for_bytes(bus) for bus in buses)
        self.sleeps = 0 < num_sleeping == len(buses)
        for bus in buses:
            check_lengths(bus)
            try:
                bus.connect()
                try:
                    if not bus.is_calibrated:
                        raise self._mismatch()
                    for motor in () if looks else bus.motors:
                        position = bus.read("Present_Position", motor, normalize=False, num_retry=2)
                        bus.write("Goal_Position", motor, position, normalize=False, num_retry=2)
                finally:
                    bus.disconnect(disable_torque=False)
            except DeviceError:
                raise
            except Exception as error:  # a dead motor, a wrong port
                raise DeviceError(f"LeRobot cannot connect {self._what}: {one_line(error)}") from error

    def _mismatch(self) -> DeviceError:
        return DeviceError(
            f"the calibration of {self._what} is missing or differs from its motors. Run: {self._calibrate}"
        )

    def disconnect(self) -> None:
        if self.only_looks:
            self._leave()
        elif self._device.is_connected:
            self._device.disconnect()

    def _leave(self) -> None:
        """Disconnect and leave the torque as it is, whatever LeRobot's config says."""
        for bus in _buses(self._device):
            if bus.is_connected:
                bus.disconnect(disable_torque=False)
        for one in _devices(self._device):
            cameras = vars(one).get("cameras")
            for camera in cameras.values() if isinstance(cameras, dict) else ():
                if camera.is_connected:
                    camera.disconnect()
        if self._device.is_connected:  # a device without a bus
            self._device.disconnect()

    def _check_buses(self) -> None:
        """LeRobot's synchronous reads ignore the error bits of the motors: ask one motor after the other."""
        if (now_s := time.monotonic()) < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_S
        for bus in _buses(self._device):
            names = list(bus.motors)
            motor = names[self._num_checks % len(names)]
            table = bus.model_ctrl_table[bus.motors[motor].model]
            register = next((name for name in ("Status", "Hardware_Error_Status") if name in table), None)
            try:
                bits = bus.read(register, motor, normalize=False, num_retry=2) if register else 0
            except Exception as error:  # ConnectionError, RuntimeError
                raise DeviceError(f"motor '{motor}' of {self._what} reports: {one_line(error)}") from error
            if bits:
                raise DeviceError(f"motor '{motor}' of {self._what} reports the error bits {bits:#04x}")
        self._num_checks += 1

    def drain(self) -> None:
        """After a failed call: late answers must not be read as those to the next question."""
        for bus in _buses(self._device):
            drain(bus)

    def _numbers(self, values: Mapping[str, Any], keys: Sequence[str], what: str) -> Array:
        try:
            return np.array([float(values[key]) for key in keys], np.float64)
        except KeyError as error:
            raise DeviceError(
                f"{what} of {self._what} lacks {error}. It has {', '.join(map(str, values))}"
            ) from None
        except (TypeError, ValueError) as error:
            raise DeviceError(f"{what} of {self._what} is not a number: {one_line(error)}") from None


class Robot(_Device):
    """A LeRobot robot. `holds` says how each action key stands still: ["measured", key], ["value", x] or ["last", key]."""

    def __init__(self, device: Any, **facts: Any) -> None:
        super().__init__(device, **facts)
        self._keys: list[str] = []
        self._holds: dict[str, list[Any]] = {}
        self._last_sent: dict[str, float] = {}
        self._last_seen: dict[str, float] = {}
        self._seen_s = -1e9
        self._held: dict[str, float] | None = None
        self._frames: dict[str, tuple[int, int]] = {}  # camera: identity and time of the last frame that was sent

    def features(self) -> dict[str, Any]:
        return {
            "observation": _features(self._device.observation_features),
            "action": _features(self._device.action_features),
            "version": lerobot_version(),
        }

    def configure(self, *, keys: list[str], holds: dict[str, list[Any]]) -> None:
        """`keys` are the numbers that each observation contains."""
        self._keys, self._holds = keys, holds

    def forget_frames(self) -> None:
        """Send every camera's frame with the next observation: another client has connected."""
        self._frames.clear()

    def observe(self, cameras: Mapping[str, Sequence[int]]) -> tuple[dict[str, Any], dict[str, Array]]:
        """`cameras`: the expected shapes. A frame that was sent before is left out of the arrays."""
        values = self.measure(self._device.get_observation)
        time_ns = time.monotonic_ns()
        self._check_buses()
        numbers = self._numbers(values, self._keys, "the observation")
        self._last_seen = dict(zip(self._keys, numbers.tolist(), strict=True))
        self._seen_s = time.monotonic()
        arrays: dict[str, Array] = {"values": numbers}
        captured = {}
        for name, shape in cameras.items():
            frame = np.asarray(values.get(name))
            if frame.ndim == 2:  # depth without its last axis
                frame = frame[:, :, None]
            if list(frame.shape) != list(shape) or frame.dtype not in (np.uint8, np.uint16):
                got = f"{frame.dtype}{list(frame.shape)}" if name in values else "nothing"
                raise DeviceError(f"camera '{name}' of {self._what} gave {got}, expected {list(shape)}")
            stamp_ns = self._capture_ns(name, time_ns)
            captured[name] = stamp_ns
            mark = (id(values[name]), stamp_ns)
            if self._frames.get(name) != mark:
                self._frames[name] = mark
                arrays[name] = frame
        return {"time_ns": time_ns, "captured_ns": captured}, arrays

    def _capture_ns(self, name: str, time_ns: int) -> int:
        """LeRobot's camera threads note `time.perf_counter`, which is the monotonic clock on Linux."""
        cameras = vars(self._device).get("cameras")
        camera = cameras.get(name, cameras.get(name.removesuffix("_depth"))) if isinstance(cameras, dict) else None
        stamp_s = vars(camera).get("latest_timestamp") if camera is not None else None
        return int(stamp_s * 1e9) if isinstance(stamp_s, float) else time_ns

    def send(self, action: Mapping[str, float]) -> dict[str, float]:
        if self.only_looks:
            raise DeviceError(f"{self._what} is connected only to measure")
        self._held = None
        sent = self._device.send_action(dict(action))
        numbers = self._numbers(sent, list(action), "the executed action")
        self._last_sent = dict(zip(action, numbers.tolist(), strict=True))
        return self._last_sent

    def hold(self) -> str:
        """Stand still with torque. A repeated call sends the same targets, so that the arm does not creep down."""
        if not self._holds or not self._device.is_connected:
            return "not connected"
        if self.only_looks:
            return "nothing was commanded"
        if self._held is None:
            self._held = self._holding_action()
        for _ in range(2):  # a synchronous write has no answer and may be lost
            self._device.send_action(dict(self._held))
        return "held"

    def _holding_action(self) -> dict[str, float]:
        try:
            seen = self._positions()
        except Exception as error:  # a bus with errors
            if time.monotonic() - self._seen_s > _FRESH_S:
                raise DeviceError(f"cannot measure {self._what} to hold it: {one_line(error)}") from error
            seen = self._last_seen
        action = {}
        for key, (how, value) in self._holds.items():
            if how == "last":
                action[key] = self._last_sent.get(key, seen.get(value))
            else:
                action[key] = seen[value] if how == "measured" else value
        return {key: float(value) for key, value in action.items() if value is not None}

    def _positions(self) -> dict[str, float]:
        """Measure without the cameras: a lost camera must not prevent a stop."""
        cameras = vars(self._device).get("cameras")
        if not isinstance(cameras, dict):
            return self._median_positions()
        self._device.cameras = {}
        try:
            return self._median_positions()
        finally:
            self._device.cameras = cameras

    def _median_positions(self) -> dict[str, float]:
        """Of three measurements, so that one wrong reading does not become a target."""
        readings = [self.measure(self._device.get_observation) for _ in range(3)]
        numbers = [self._numbers(values, self._keys, "the observation") for values in readings]
        return dict(zip(self._keys, np.median(numbers, axis=0).tolist(), strict=True))


class Teleoperator(_Device):
    """A LeRobot teleoperator, such as a leader arm."""

    _has_torque = False

    def features(self) -> dict[str, Any]:
        return {
            "action": _features(self._device.action_features),
            "feedback": _features(self._device.feedback_features),
            "torque": hasattr(self._device, "enable_torque") and hasattr(self._device, "disable_torque"),
            "events": hasattr(self._device, "get_teleop_events"),
            "version": lerobot_version(),
        }

    def read(self, keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, Array]]:
        values = self.measure(self._device.get_action)
        time_ns = time.monotonic_ns()
        self._check_buses()
        return {"time_ns": time_ns}, {"values": self._numbers(values, keys, "the action")}

    def feedback(self, values: Mapping[str, float]) -> None:
        self._device.send_feedback(dict(values))

    def torque(self, *, on: bool) -> None:
        if on == self._has_torque:
            return
        if on:
            self._device.enable_torque()
        else:
            self._device.disable_torque()
        self._has_torque = on

    def events(self) -> dict[str, bool]:
        """Names are LeRobot's: is_intervention, success, failure, terminate_episode, rerecord_episode."""
        found = {}
        for key, value in self._device.get_teleop_events().items():
            found[str(getattr(key, "value", key))] = bool(value)
        return found


class Camera:
    """A LeRobot camera."""

    def __init__(self, device: Any, *, what: str) -> None:
        self._device = device
        self._what = what

    def features(self) -> dict[str, Any]:
        size = [self._device.height, self._device.width]
        return {"size": size, "fps": self._device.fps, "version": lerobot_version()}

    def connect(self) -> None:
        if not self._device.is_connected:
            try:
                self._device.connect()
            except Exception as error:  # anything of LeRobot or a plugin
                raise DeviceError(f"LeRobot cannot connect {self._what}: {one_line(error)}") from error

    def disconnect(self) -> None:
        if self._device.is_connected:
            self._device.disconnect()

    def read(self, *, timeout_s: float, depth: bool) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for a frame that was not read before. Empty: none came."""
        try:
            frame = np.asarray(self._device.async_read(timeout_ms=1e3 * timeout_s))
        except TimeoutError:
            return {}, {}
        time_ns = time.monotonic_ns()
        stamp_s = vars(self._device).get("latest_timestamp")
        captured_ns = int(stamp_s * 1e9) if isinstance(stamp_s, float) else time_ns
        arrays = {"frame": frame}
        if depth:
            reading = np.asarray(self._device.read_latest_depth())
            arrays["depth"] = reading[:, :, None] if reading.ndim == 2 else reading
        return {"captured_ns": min(captured_ns, time_ns)}, arrays
