"""A LeRobot teleoperator as a leader: see `dovetail.core.abilities.Leader`."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import numpy as np

from dovetail.core.errors import ConfigError, RobotError, shown
from dovetail.core.types import Array
from dovetail.robots.drivers.lerobot._client import BridgeLink, BridgeProcess
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message
from dovetail.robots.drivers.lerobot.settings import SO_JOINTS, SO_LEADERS, LeRobotLeaderConfig, so_units
from dovetail.robots.drivers.lerobot.units import LinearUnit, conversion, si_unit

__all__ = ["LeRobotTeleoperator"]

_LONGEST_STEP_S = 0.1  # between two calls of follow()


class LeRobotTeleoperator:
    """A leader arm behind LeRobot. `follow` moves it by its own motors, slowly, if the device can."""

    Config: ClassVar[type[LeRobotLeaderConfig]] = LeRobotLeaderConfig

    def __init__(self, config: LeRobotLeaderConfig) -> None:
        self._config = config
        self._keys, self._axes, self._units, self._scale, self._offset = _layout(config)
        self._process = BridgeProcess(
            config, config.bridge_settings("teleoperator", config.teleoperator, release=True)
        )
        self._link: BridgeLink | None = None
        self._has_events = False
        self._lock = threading.Lock()
        self._target: Array | None = None  # of follow()
        self._followed_s = 0.0

    @property
    def name(self) -> str:
        return self._config.teleoperator

    @property
    def axes(self) -> tuple[str, ...]:
        return self._axes

    @property
    def units(self) -> tuple[str, ...]:
        return self._units

    @property
    def start_timeout_s(self) -> float:
        return self._config.start_timeout_s

    @property
    def can_follow(self) -> bool:
        return self._config.follow

    def get_action(self) -> dict[str, float]:
        """The positions by LeRobot's keys, in LeRobot's units."""
        theirs = self._read()
        return dict(zip(self._keys, theirs.tolist(), strict=True))

    def send_feedback(self, feedback: dict[str, float]) -> None:
        """Feedback by LeRobot's keys, in LeRobot's units. Without a limit of speed: see `follow`."""
        keys = list(feedback)
        values = np.array([feedback[key] for key in keys], np.float64)
        if not np.isfinite(values).all():
            raise RobotError(f"the feedback for '{self.name}' is not finite")
        self._request(Message("feedback", {"keys": keys}, {"values": values}))

    def events(self) -> dict[str, bool]:
        """LeRobot's events: is_intervention, success, failure, terminate_episode, rerecord_episode. Empty: it has none."""
        self._open()
        if not self._has_events:
            return {}
        events = self._request(Message("events")).fields.get("events")
        if not isinstance(events, dict):
            raise RobotError(f"the LeRobot process of '{self.name}' sent no events")
        return {str(key): value is True for key, value in events.items()}

    def read(self) -> Array:
        return np.asarray(self._scale * self._read() + self._offset)

    def follow(self, positions: Array) -> None:
        if not self._config.follow:
            return
        goal = np.asarray(positions, np.float64)
        if goal.shape != (len(self._axes),) or not np.isfinite(goal).all():
            raise RobotError(f"leader '{self.name}' needs {len(self._axes)} finite positions, got {goal.tolist()}")
        now_s = time.monotonic()
        if self._target is None:
            self._target = self.read()
            self._request(Message("torque", {"on": True}))
            self._followed_s = now_s
        step = self._config.follow_speed * min(now_s - self._followed_s, _LONGEST_STEP_S)
        self._target = self._target + np.clip(goal - self._target, -step, step)
        self._followed_s = now_s
        theirs = (self._target - self._offset) / self._scale
        self._request(Message("feedback", {"keys": list(self._keys)}, {"values": theirs}))

    def release(self) -> None:
        self._target = None
        if self._config.follow:
            self._request(Message("torque", {"on": False}))

    def close(self) -> None:
        """The bridge switches the torque off when its client is gone."""
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link = None

    def _read(self) -> Array:
        answer = self._request(Message("read", {"keys": list(self._keys)}))
        values = answer.arrays.get("values")
        if values is None or values.shape != (len(self._keys),) or values.dtype != np.float64:
            raise RobotError(f"the LeRobot process of '{self.name}' sent no positions")
        if not np.isfinite(values).all():
            raise RobotError(f"leader '{self.name}' measured {values.tolist()}")
        return values

    def _request(self, message: Message) -> Message:
        link = self._open()
        with self._lock:
            return link.request(message, timeout_s=self._config.timeout_s)

    def _open(self) -> BridgeLink:
        with self._lock:
            if self._link is None or not self._link.is_open:
                self._target = None
                self._link = self._connect()
            return self._link

    def _connect(self) -> BridgeLink:
        config = self._config
        link = self._process.connect("control", start=True)
        try:
            features = link.request(Message("open"), timeout_s=config.start_timeout_s).fields.get("features")
            action = features.get("action") if isinstance(features, dict) else None
            if not isinstance(features, dict) or not isinstance(action, dict):
                raise RobotError(f"the LeRobot process of '{self.name}' sent no features")
            if missing := sorted(set(self._keys) - set(action)):
                raise RobotError(
                    f"'{self.name}' has no {', '.join(missing)}. It has {shown(', '.join(action), max_chars=500)}"
                )
            feedback = features.get("feedback")
            has_feedback = isinstance(feedback, dict) and set(self._keys) <= set(feedback)
            if config.follow and not (has_feedback and features.get("torque") is True):
                raise RobotError(
                    f"'{self.name}' of LeRobot {shown(features.get('version'))} cannot follow: set `follow` to false"
                )
            self._has_events = features.get("events") is True
            link.request(Message("connect", {}), timeout_s=config.start_timeout_s)
        except BaseException:
            link.close()
            raise
        return link


def _layout(
    config: LeRobotLeaderConfig,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Array, Array]:
    """Keys, axes and units, and ours = scale * theirs + offset."""
    is_so = config.teleoperator in SO_LEADERS and not config.axes
    if is_so and config.config.get("use_degrees", True) is not True:
        raise ConfigError(f"'{config.teleoperator}' without use_degrees has no units: set it to true")
    axes = (*SO_JOINTS, "gripper") if is_so else config.axes
    if not axes:
        raise ConfigError(
            f"teleoperator '{config.teleoperator}' needs `axes` and `units`: see docs/robots/lerobot.md"
        )
    units = so_units() | dict(config.units) if is_so else dict(config.units)
    keys, ours, found = [], [], []
    for axis in axes:
        key = config.keys.get(axis, f"{axis}.pos")
        if key not in units:
            raise ConfigError(f"`units` has no unit of '{key}'. Say in what unit LeRobot gives it, such as deg")
        theirs = units[key]
        unit = config.axis_units.get(axis)
        if unit is None:
            unit = "1" if isinstance(theirs, LinearUnit) else si_unit(theirs, key=key)
        keys.append(key)
        ours.append(unit)
        found.append(conversion(theirs, unit, key=key))
    scale, offset = np.array([one.scale for one in found]), np.array([one.offset for one in found])
    return tuple(keys), tuple(axes), tuple(ours), scale, offset
