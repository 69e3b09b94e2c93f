"""igris_b on loopback: publishes its state at 20 Hz and follows targets, right side first as the original does.

    with IgrisBEmulator(IgrisBEmulatorConfig(domain_id=77)) as robot:
        robot.misbehave("nan", duration_s=0.5)

Another process sends the same as text, such as `nan 0.5`, to the topic `/igris_b/ID/emulator`. The topic `reach_target`
is not part of the original: it shows the targets of the task `igris_reach`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import RobotError, UsageError, did_you_mean
from dovetail.emulators.igris_b.body import NUM_ARM, NUM_FINGERS, Body, ReachTargets, Vector
from dovetail.emulators.igris_b.faults import FAULTS, SILENCES, State
from dovetail.robots.drivers.ros2.dds import DdsNode, Publication, Subscription
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import DdsConfig, QosConfig

__all__ = ["IgrisBEmulator", "IgrisBEmulatorConfig"]

_JOINTS = "sensor_msgs/msg/JointState"
_FLOATS = "std_msgs/msg/Float32MultiArray"
_TEXT = "std_msgs/msg/String"
_QOS = QosConfig(reliability="reliable", durability="volatile", depth=10)
_LATE_S = 0.5
_NOISE_RAD = 2e-4
_MAX_CATCH_UP_S = 0.5  # after this process was paused


class IgrisBEmulatorConfig(Config):
    """An emulated igris_b."""

    domain_id: int = Field(default=0, ge=0, le=232)
    """DDS domain."""
    robot_id: str = "packy"
    """Robot id in the topics."""
    publish_hz: float = Field(default=20.0, gt=0.0, le=1000.0)
    """Messages per second on each state topic."""
    speed: float = Field(default=1.0, gt=0.0, le=20.0)
    """How much faster than a real robot it moves and publishes."""
    pose: Literal["rest", "start"] = "rest"
    """Pose at the beginning: all joints at zero, or the start pose."""
    names: bool = False
    """Whether joint_states has the names of the joints. The original's may be empty."""
    misbehave: str = ""
    """A fault to show, such as `nan` or `silent`. Empty: none."""
    misbehave_after_s: float = Field(default=5.0, ge=0.0)
    """Seconds after the start at which the fault begins."""
    seed: int = 0
    """Seed of noise and of the targets to reach."""


class IgrisBEmulator:
    """Two arms with 6 joints and two hands with 6 fingers."""

    Config: ClassVar[type[Config]] = IgrisBEmulatorConfig

    def __init__(self, config: IgrisBEmulatorConfig) -> None:
        self._config = config
        self._rng = np.random.default_rng(config.seed)
        self.body = Body(at_start_pose=config.pose == "start")
        self.reach = ReachTargets(self._rng)
        self.num_commands = 0
        self._fault: tuple[str, int] = ("", 0)  # name and end, monotonic ns
        if config.misbehave:
            _check_fault(config.misbehave)
        self._late: deque[tuple[int, State]] = deque()
        self._last: State | None = None
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._node: DdsNode | None = None
        self._seen: dict[str, int] = {}

    def start(self) -> None:
        self._codec = Codec()
        self._dds = DdsConfig(
            domain_id=self._config.domain_id, interface="lo", peers=("127.0.0.1",), multicast=False
        )
        self._open(except_publisher=False, deaf=False)
        self._thread = threading.Thread(target=self._run, name="igris_b", daemon=True)
        self._thread.start()

    def describe(self) -> list[str]:
        config = self._config
        return [
            f"igris_b '{config.robot_id}' in DDS domain {config.domain_id} on loopback (lo, peer 127.0.0.1, no multicast)",
            f"publishes {', '.join(self._topic(name) for name in ('joint_states', 'finger_state', 'finger_current'))} "
            f"at {config.publish_hz * config.speed:g} Hz",
            f"follows {self._topic('target_joints')} and {self._topic('finger_target')}",
            f"faults: publish NAME SECONDS as text on {self._topic('emulator')}: {', '.join((*FAULTS, *SILENCES))}",
        ]

    def misbehave(self, name: str, *, duration_s: float = 1e9) -> None:
        """Show a fault from the next message on. An empty name ends it."""
        if name:
            _check_fault(name)
        self._fault = (name, time.monotonic_ns() + round(duration_s * NS_PER_S))

    def close(self) -> None:
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        if self._node is not None:
            self._node.close()
            self._node = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _topic(self, name: str) -> str:
        return f"/igris_b/{self._config.robot_id}/{name}"

    def _open(self, *, except_publisher: bool, deaf: bool) -> None:
        """Join the domain, without a publisher of finger_state or without a subscriber of target_joints on request."""
        if self._node is not None:
            self._node.close()
        self._node = node = DdsNode(self._dds, self._codec)
        names = [("joint_states", _JOINTS), ("finger_current", _FLOATS), ("reach_target", _FLOATS)]
        names += [] if except_publisher else [("finger_state", _FLOATS)]
        self._publications: dict[str, Publication] = {
            name: node.publish(self._topic(name), kind, _QOS) for name, kind in names
        }
        heard = [("finger_target", _FLOATS), ("emulator", _TEXT)] + ([] if deaf else [("target_joints", _JOINTS)])
        self._subscriptions: dict[str, Subscription] = {
            name: node.subscribe(self._topic(name), kind, _QOS) for name, kind in heard
        }
        self._seen = {}
        node.start()

    def _run(self) -> None:
        period_s = 1.0 / (self._config.publish_hz * self._config.speed)
        began_s = last_s = time.monotonic()
        next_s = began_s
        shown = ""
        while not self._is_closing.is_set():
            now_s = time.monotonic()
            if self._config.misbehave and now_s - began_s >= self._config.misbehave_after_s:
                self.misbehave(self._config.misbehave)
            fault = self._current_fault()
            if fault != shown and {"no_publisher", "deaf"} & {fault, shown}:
                self._open(except_publisher=fault == "no_publisher", deaf=fault == "deaf")
            shown = fault
            self._hear()
            self.body.advance(min(now_s - last_s, _MAX_CATCH_UP_S) * self._config.speed)
            last_s = now_s
            if now_s >= next_s:
                next_s = max(next_s + period_s, now_s)
                self.reach.look_at(self.body)
                self._publish(fault)
            time.sleep(min(0.005, max(next_s - time.monotonic(), 0.0005)))

    def _current_fault(self) -> str:
        name, until_ns = self._fault
        return name if time.monotonic_ns() < until_ns else ""

    def _hear(self) -> None:
        for name, subscription in self._subscriptions.items():
            sample = subscription.newest
            if sample is None or sample.number == self._seen.get(name):
                continue
            self._seen[name] = sample.number
            try:
                self._obey(name, self._codec.decode(sample.payload, subscription.type_name))
            except (RobotError, UsageError, ValueError):
                continue  # the original ignores what it cannot read

    def _obey(self, name: str, message: Any) -> None:
        if name == "emulator":
            fault, _, duration = message.data.partition(" ")
            self.misbehave(fault, duration_s=float(duration or 1e9))
        elif name == "target_joints" and _is_valid(message.position, NUM_ARM):
            self.body.target[:NUM_ARM] = message.position
            self.num_commands += 1
        elif name == "finger_target" and _is_valid(message.data, NUM_FINGERS):
            self.body.target[NUM_ARM:] = np.clip(message.data, 0.0, 1.0)

    def _publish(self, fault: str) -> None:
        noise = self._rng.normal(0.0, _NOISE_RAD, NUM_ARM + NUM_FINGERS)
        state = State(
            stamp_ns=time.time_ns(),
            position=self.body.arms + noise[:NUM_ARM],
            effort=self.body.effort,
            finger_state=self.body.fingers + noise[NUM_ARM:],
            finger_current=self.body.finger_current,
        )
        if fault == "repeat" and self._last is not None:
            state = self._last
        self._last = state
        self._late.append((time.monotonic_ns(), state))
        if fault == "late":
            due = time.monotonic_ns() - round(_LATE_S * NS_PER_S)
            while len(self._late) > 1 and self._late[1][0] <= due:
                self._late.popleft()
            if self._late[0][0] > due:
                return
            state = self._late[0][1]
        else:
            self._late.clear()
        state = FAULTS[fault](state) if fault in FAULTS else state
        self._write(state, silent=SILENCES.get(fault, ()))

    def _write(self, state: State, *, silent: tuple[str, ...]) -> None:
        numbers = {
            "finger_state": state.finger_state,
            "finger_current": state.finger_current,
            "reach_target": self.reach.position,
        }
        for name, values in numbers.items():
            if name not in silent and name in self._publications:
                message = self._codec.blank(_FLOATS)
                message.data = values.astype(np.float32)
                self._publications[name].write(self._codec.encode(message, _FLOATS))
        if "joint_states" not in silent:
            message = self._codec.blank(_JOINTS)
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(state.stamp_ns, NS_PER_S)
            message.position, message.effort = state.position.copy(), state.effort.copy()
            if self._config.names:
                message.name = [f"{side}_joint_{i + 1}" for side in ("right", "left") for i in range(6)]
            self._publications["joint_states"].write(self._codec.encode(message, _JOINTS))


def _check_fault(name: str) -> None:
    known = (*FAULTS, *SILENCES)
    if name not in known:
        raise UsageError(f"the emulator of igris_b has no fault '{name}'.{did_you_mean(name, known)}")


def _is_valid(values: Vector, size: int) -> bool:
    return len(values) == size and bool(np.isfinite(values).all())
