"""One connection to a ROS 2 robot: its measurements, its command topics, and how it is held still."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import RobotError
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array
from dovetail.robots.drivers.ros2.dds import DdsNode, Publication, Sample, Subscription
from dovetail.robots.drivers.ros2.messages import Codec, MessageError
from dovetail.robots.drivers.ros2.settings import Ros2Config
from dovetail.robots.drivers.ros2.stamps import CaptureClock
from dovetail.robots.drivers.ros2.topics import CommandBuilder, StateReader

__all__ = ["Ros2Link"]

_HOLD_INTERVAL_S = 0.01
_MIN_ELAPSED_S = 0.1  # times of messages jitter
_ACKNOWLEDGE_S = 0.5  # in all; a guard waits for 1 s
_STAMPED = ("geometry_msgs/msg/PoseStamped", "sensor_msgs/msg/JointState")


class StateFeed:
    """The newest valid message of one state topic."""

    def __init__(self, reader: StateReader, subscription: Subscription, codec: Codec) -> None:
        self.topic = reader.config.topic
        self._reader, self._subscription, self._codec = reader, subscription, codec
        self._is_stamped = reader.config.stamp == "header" and reader.config.type_name in _STAMPED
        self._stale_ns = int(reader.config.stale_after_s * NS_PER_S)
        self._clock = CaptureClock()
        self._num_seen = 0
        self._has_jumped = False
        self._behind_s: float | None = None  # the newest message has an older stamp than the one before
        self.values: dict[str, Array] = {}
        self.captured_ns: int | None = None

    def refresh(self) -> None:
        """Read the newest message, if it is new. Raises RobotError with the topic's name if it is invalid."""
        sample = self._subscription.newest
        if sample is None or sample.number == self._num_seen:
            return
        self._num_seen = sample.number
        try:
            message = self._codec.decode(sample.payload, self._reader.config.type_name)
            values = self._reader.read(message)
        except MessageError as error:
            raise RobotError(f"a message on {self.topic} is invalid: {error}") from error
        captured_ns = self._captured_ns(message, sample)
        if captured_ns is not None:
            self._check_jump(values, captured_ns)
            self.values, self.captured_ns = values, captured_ns

    def check(self, now_ns: int) -> None:
        """Raises RobotError if the topic has no publisher, several, or no new message."""
        if self._subscription.has_two_publishers:
            self._subscription.forget_publishers()
            raise RobotError(f"two publishers take turns on {self.topic}. End one of them")
        if not self._subscription.num_publishers:
            raise RobotError(f"the publisher of {self.topic} has gone. Check the robot and the network")
        if self.captured_ns is None:
            raise RobotError(f"no message on {self.topic} yet")
        age_ns = now_ns - self.captured_ns
        if age_ns <= self._stale_ns:
            return
        why = "Check the robot and the network"
        if self._behind_s is not None:
            why = f"New messages have stamps that are {self._behind_s:.3g} s older: was the robot's clock set?"
            self._clock.reset()
        raise RobotError(f"the newest valid message on {self.topic} is {age_ns / NS_PER_S:.2f} s old. {why}")

    def is_fresh(self, now_ns: int) -> bool:
        return self.captured_ns is not None and now_ns - self.captured_ns <= self._stale_ns

    def missing(self) -> str | None:
        """What is missing at the start; None once there is a valid message."""
        if self.captured_ns is not None:
            return None
        if self._subscription.has_incompatible_qos:
            return f"{self.topic} is published with another quality of service: change its `qos`"
        if self._subscription.num_publishers:
            return f"{self.topic} has a publisher but no message"
        return f"{self.topic} has no publisher of type {self._reader.config.type_name}"

    def _check_jump(self, values: Mapping[str, Array], captured_ns: int) -> None:
        """Refuse values that no robot reaches in the time since the last valid message. Once refused, they are not accepted
        later: only a person can tell whether the robot is there."""
        if self.captured_ns is None:
            return
        elapsed_s = 0.0 if self._has_jumped else (captured_ns - self.captured_ns) / NS_PER_S
        for key, value in values.items():
            max_speed = self._reader.config.field(key).max_speed
            if max_speed is None:
                continue
            change = float(np.abs(value - self.values[key]).max())
            if change > max_speed * max(elapsed_s, _MIN_ELAPSED_S):
                self._has_jumped = True
                raise RobotError(
                    f"'{key}' on {self.topic} jumped by {change:.3g}. Check the order of its values; restart to accept it"
                )
        self._has_jumped = False

    def _captured_ns(self, message: Any, sample: Sample) -> int | None:
        stamp_ns = 0
        if self._is_stamped:
            stamp_ns = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
        if stamp_ns <= 0:
            return sample.arrived_ns
        captured_ns = self._clock.captured_ns(stamp_ns, arrived_ns=sample.arrived_ns)
        self._behind_s = None if captured_ns is not None else self._clock.behind_s(stamp_ns)
        return captured_ns


class Ros2Link:
    """A DDS participant with the topics of one robot. `close` ends it."""

    def __init__(self, config: Ros2Config, spec: RobotSpec, *, hears_commands: bool = False) -> None:
        """Opens the network but does not wait. `hears_commands`: also listen to the commands of other processes, whose
        last gripper targets a stop must keep."""
        self._config, self._spec = config, spec
        self._codec = codec = Codec(config.distro)
        self._node = DdsNode(config.dds, codec)
        self._lock = threading.Lock()
        readers = [StateReader(topic) for topic in config.state]
        self.feeds = [
            StateFeed(reader, self._node.subscribe(*_names(reader.config), reader.config.qos), codec)
            for reader in readers
        ]
        measured = {part.measured_key for part in spec.parts if part.measured_key}
        feeding = [feed for feed, reader in zip(self.feeds, readers, strict=True) if measured & set(reader.sizes)]
        self._timed = feeding or self.feeds  # they set the time of an observation
        builders = [CommandBuilder(topic, spec) for topic in config.command]
        self._commands: list[tuple[CommandBuilder, Publication, Subscription | None]] = [
            (
                builder,
                self._node.publish(*_names(builder.config), builder.config.qos),
                self._node.subscribe(*_names(builder.config), builder.config.qos, listens_only=True)
                if hears_commands
                else None,
            )
            for builder in builders
        ]
        self._robots: dict[str, frozenset[int]] = {}  # the subscribers of each command topic
        self._node.start()

    def connect(self, timeout_s: float) -> None:
        """Wait for a valid message on each state topic and for subscribers of each command topic. Raises RobotError."""
        problem: list[RobotError] = []

        def is_there() -> bool:
            try:
                self.refresh()
            except RobotError as error:
                problem.append(error)
            return bool(problem) or not self._missing()

        until_s = time.monotonic() + timeout_s
        # the subscribers of commands send nothing, so look again from time to time
        while not self._node.wait(is_there, timeout_s=0.05) and time.monotonic() < until_s:
            pass
        if problem:
            raise problem[0]
        if missing := self._missing():
            dds = self._config.dds
            raise RobotError(
                f"robot '{self._spec.name}' was not found in DDS domain {dds.domain_id} within {timeout_s:g} s: {missing[0]}"
            )

    def refresh(self) -> None:
        """Read what has arrived. Raises RobotError for an invalid message."""
        self._node.check()
        with self._lock:
            for feed in self.feeds:
                feed.refresh()

    def check(self) -> None:
        """Raises RobotError with the name of a topic that is silent or without a publisher."""
        now_ns = time.monotonic_ns()
        for feed in self.feeds:
            feed.check(now_ns)

    def wait_newer(self, than_ns: int, *, timeout_s: float) -> None:
        """Wait until all measurements are newer than `than_ns`, but not longer than the timeout."""

        def is_newer() -> bool:
            self.refresh()
            return self.time_ns > than_ns

        self._node.wait(is_newer, timeout_s=timeout_s)

    @property
    def time_ns(self) -> int:
        """When the oldest measured value was captured; 0 before the first."""
        return min((feed.captured_ns or 0 for feed in self._timed), default=0)

    def values(self) -> dict[str, Array]:
        """The newest valid observations. Each array is a copy."""
        with self._lock:
            return {key: value.copy() for feed in self.feeds for key, value in feed.values.items()}

    def send(self, action: Array) -> None:
        """Publish an action. Raises RobotError with the topic's name if the robot does not listen."""
        for builder, publication, _ in self._commands:
            self._check_listens(publication)
            self._write(builder, publication, action)

    def hold(self, last: Mapping[str, Array], *, timeout_s: float) -> None:
        """Stand still: publish the measured positions as targets, and zero velocities.

        Topics whose targets are known are published at once; others, and absent subscribers, are waited for. The positions
        are read once: an arm that sags would sink further if it followed its own measurements. `last` has the last targets
        of parts that keep them, such as grippers. Raises RobotError if a part cannot be held.
        """
        until_s = time.monotonic() + timeout_s
        actions: dict[str, Array] = {}  # by topic
        num_sent: Counter[str] = Counter()
        while True:
            held, unknown = self._hold_targets(last)
            for builder, publication, _ in self._commands:
                topic = publication.topic
                if topic not in actions and not any(part.name in unknown for part in builder.parts):
                    actions[topic] = self._action(held)
                if topic in actions and num_sent[topic] < self._config.num_hold_messages:
                    self._write(builder, publication, actions[topic])
                    num_sent[topic] += publication.num_subscribers > 0  # else the robot did not get it
            if num_sent.total() == self._config.num_hold_messages * len(self._commands):
                break
            if time.monotonic() > until_s:
                break
            time.sleep(_HOLD_INTERVAL_S)
        until_s = time.monotonic() + _ACKNOWLEDGE_S
        problems = [f"part '{name}' has no fresh measurement" for name in unknown]
        for _, publication, _ in self._commands:
            if publication.topic in actions and not num_sent[publication.topic]:
                problems.append(f"no robot listens to {publication.topic}")
            elif publication.topic in actions and not publication.wait_for_acknowledgement(
                max(until_s - time.monotonic(), 0.0)
            ):
                problems.append(f"{publication.topic} was not acknowledged")
        if problems:
            raise RobotError(f"the stop did not reach all parts: {'; '.join(problems)}. Use the emergency stop")

    def close(self) -> None:
        self._node.close()

    def _check_listens(self, publication: Publication) -> None:
        """Raises RobotError if a subscriber has gone that was there before: another one may be a mere listener."""
        now = publication.subscribers()
        known = self._robots.get(publication.topic, frozenset())
        self._robots[publication.topic] = known & now or now
        if not now or not known <= now:
            raise RobotError(
                f"the robot no longer listens to {publication.topic}. Check the robot and the network"
            )

    def _missing(self) -> list[str]:
        found = [missing for feed in self.feeds if (missing := feed.missing())]
        for _, publication, _ in self._commands:
            if not publication.num_subscribers:
                qos = (
                    "with another quality of service: change its `qos`" if publication.has_incompatible_qos else ""
                )
                found.append(
                    f"{publication.topic} has no subscriber of type {publication.type_name} {qos}".rstrip()
                )
        return found

    def _write(self, builder: CommandBuilder, publication: Publication, action: Array) -> None:
        message = builder.fill(self._codec.blank(publication.type_name), action)
        if publication.type_name in _STAMPED:
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(time.time_ns(), NS_PER_S)
        publication.write(self._codec.encode(message, publication.type_name))

    def _action(self, targets: Mapping[str, Array]) -> Array:
        action = np.zeros(self._spec.action.shape, np.float32)
        for name, target in targets.items():
            action[self._spec.slice_of(name)] = target
        return action

    def _hold_targets(self, last: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
        """The target of each part that stands still, and the parts whose target is unknown."""
        with contextlib.suppress(RobotError):  # the last valid measurement counts while it is fresh
            self.refresh()
        now_ns = time.monotonic_ns()
        with self._lock:
            fresh = {
                key: value for feed in self.feeds if feed.is_fresh(now_ns) for key, value in feed.values.items()
            }
        last = {**dict(self._heard()), **last}
        held: dict[str, Array] = {}
        for part in self._spec.parts:
            target = _still(part, fresh, last)
            if target is not None:
                held[part.name] = target
        return held, [part.name for part in self._spec.parts if part.name not in held]

    def _heard(self) -> Iterator[tuple[str, Array]]:
        """The last targets that any process has published."""
        for builder, publication, subscription in self._commands:
            if subscription is None or subscription.newest is None:
                continue
            try:
                message = self._codec.decode(subscription.newest.payload, publication.type_name)
                yield from builder.read(message).items()
            except MessageError:
                continue  # the robot cannot read it either


def _names(config: Any) -> tuple[str, str]:
    return config.topic, config.type_name


def _still(part: ActionPart, fresh: Mapping[str, Array], last: Mapping[str, Array]) -> Array | None:
    """The target with which a part stands still. None: not known."""
    if part.is_velocity:
        return np.zeros(part.num_axes, np.float32)
    if isinstance(part.hold, tuple):
        return np.array(part.hold, np.float32)
    if part.hold == "last" and part.name in last:
        return last[part.name]
    if not part.measured or part.measured_key not in fresh:
        return None
    measured = fresh[part.measured_key][part.measured_slice]
    return _without_quaternion(measured)[: part.num_axes] if part.frame else measured


def _without_quaternion(pose: Array) -> Array:
    """x y z qw qx qy qz, to x y z and a rotation vector."""
    w, vector = float(pose[3]), pose[4:7].astype(np.float64)
    if w < 0:
        w, vector = -w, -vector
    norm = float(np.linalg.norm(vector))
    scale = 2.0 if norm < 1e-9 else 2.0 * np.arctan2(norm, w) / norm
    return np.concatenate((pose[:3], scale * vector)).astype(np.float32)
