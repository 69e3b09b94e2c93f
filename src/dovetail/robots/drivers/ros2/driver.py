"""A robot with ROS 2 topics, over DDS and without ROS: state topics become observations, action parts become commands.

    robot:
      type: ros2
      dds: {domain_id: 0}
      state:
        - topic: /arm/joint_states
          msg_type: JointState
          fields: {joint_pos: {attr: position, slice: [0, 6]}}
      command:
        - {topic: /arm/target_joints, msg_type: JointState, fields: {arm: {attr: position}}}
      action:
        - {name: arm, kind: joint_target, unit: rad, axes: 6, low: -2.8, high: 2.8, max_speed: 1.0, measured: joint_pos}

A missing or invalid value, a silent topic and a publisher that has gone are faults with the topic's name.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.drivers.ros2.link import Ros2Link
from dovetail.robots.drivers.ros2.settings import Ros2Config
from dovetail.robots.drivers.ros2.topics import CommandBuilder, check_commands, robot_spec

__all__ = ["Ros2Robot", "Ros2Stop"]

_STOP_S = 0.3  # for a measurement, if the last one is old
_STOP_AND_CONNECT_S = 2.0


class Ros2Robot:
    """Any robot with ROS 2 topics. The first call connects."""

    Config: ClassVar[type[Ros2Config]] = Ros2Config
    packages: ClassVar[Mapping[str, str]] = {"cyclonedds": "dovetail[ros2]", "rosbags": "dovetail[ros2]"}

    def __init__(self, config: Ros2Config, *, task: Any = None) -> None:
        self._config = config
        self._spec = robot_spec(config)
        check_commands([CommandBuilder(topic, self._spec) for topic in config.command], self._spec)
        self._lock = threading.Lock()  # held while the link is opened, not while it waits
        self._link: Ros2Link | None = None
        self._is_connected = False
        self._last: dict[str, Array] = {}  # the last target of each part
        self._time_ns = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        """Waits up to `max_wait_s` for messages that are newer than the last observation."""
        link = self._open()
        if not self._is_connected:
            link.connect(self._config.connect_s)
            self._is_connected = True
        link.wait_newer(self._time_ns, timeout_s=self._config.max_wait_s)
        link.check()
        self._time_ns = link.time_ns
        return Observation(time_ns=self._time_ns, values=link.values())

    def send(self, action: Array) -> Array:
        if not self._is_connected:
            raise RobotError(f"robot '{self._spec.name}' is not connected. Call observe() first")
        low, high = self._spec.action.bounds
        executed = np.clip(np.asarray(action, np.float32), low, high)
        if executed.shape != self._spec.action.shape or not np.isfinite(executed).all():
            raise RobotError(f"an action of shape {list(executed.shape)} with invalid numbers was not sent")
        self._open().send(executed)
        self._last = {part.name: executed[self._spec.slice_of(part.name)].copy() for part in self._spec.parts}
        return executed

    def stop(self) -> None:
        """Publish the measured position as target, several times. Raises RobotError if the robot does not listen."""
        timeout_s = _STOP_S if self._is_connected else _STOP_AND_CONNECT_S
        self._open().hold(self._last, timeout_s=timeout_s)

    def open_stop(self) -> Ros2Stop:
        """A participant of its own, for the guard process. Raises RobotError if the robot is not there."""
        link = Ros2Link(self._config, self._spec, hears_commands=True)
        try:
            link.connect(self._config.connect_s)
        except RobotError:
            link.close()
            raise
        return Ros2Stop(link)

    def close(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            self._is_connected = False
        if link is not None:
            link.close()

    def _open(self) -> Ros2Link:
        with self._lock:
            if self._link is None:
                self._link = Ros2Link(self._config, self._spec)
            return self._link


class Ros2Stop:
    """Holds the robot over a second DDS participant, which shares nothing with the control process."""

    def __init__(self, link: Ros2Link) -> None:
        self._link = link

    def stop(self) -> None:
        self._link.hold({}, timeout_s=_STOP_S)

    def close(self) -> None:
        self._link.close()
