"""Settings of `robot.type: ros2`. This module loads no DDS, so that a wrong setting is refused at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from dovetail.config.action_parts import ActionPartConfig
from dovetail.config.model import Config
from dovetail.core.errors import did_you_mean

__all__ = [
    "DISTROS",
    "VALUE_SIZES",
    "CommandTopic",
    "DdsConfig",
    "FieldConfig",
    "QosConfig",
    "Ros2Config",
    "StateTopic",
    "full_type",
]

Distro = Literal["foxy", "galactic", "humble", "iron", "jazzy", "kilted"]
DISTROS: tuple[str, ...] = ("foxy", "galactic", "humble", "iron", "jazzy", "kilted")

_ONE = {"data": 1}
VALUE_SIZES: dict[str, dict[str, int]] = {  # the numbers in each message type; 0: a list of any length
    "geometry_msgs/msg/PoseStamped": {
        "pose": 7,  # x y z qw qx qy qz, as everywhere in Dovetail
        "pose.position": 3,
        "pose.orientation": 4,
        **{f"pose.position.{axis}": 1 for axis in "xyz"},
        **{f"pose.orientation.{axis}": 1 for axis in "wxyz"},
    },
    "sensor_msgs/msg/JointState": {"position": 0, "velocity": 0, "effort": 0},
    "std_msgs/msg/Float32MultiArray": {"data": 0},
    "sensor_msgs/msg/Image": {},
    "sensor_msgs/msg/CompressedImage": {},
    "std_msgs/msg/Bool": _ONE,
    "std_msgs/msg/Int32": _ONE,
    "std_msgs/msg/Float32": _ONE,
    "std_msgs/msg/Int64": _ONE,
    "std_msgs/msg/Float64": _ONE,
    "std_msgs/msg/String": {},
}
_TEXTS: dict[str, tuple[str, ...]] = {  # what `expect` and `constants` may also name
    "geometry_msgs/msg/PoseStamped": ("header.frame_id",),
    "sensor_msgs/msg/JointState": ("header.frame_id", "name"),
    "std_msgs/msg/String": ("data",),
}
_TOPIC = re.compile(r"^(/[A-Za-z_][A-Za-z0-9_]*)+$")

Constant = bool | int | float | str | tuple[str, ...]


def full_type(name: str) -> str:
    """`sensor_msgs/msg/JointState` for this, for `sensor_msgs/JointState` and for `JointState`. Raises ValueError."""
    for known in VALUE_SIZES:
        package, _, short = known.split("/")
        if name in (known, f"{package}/{short}", short):
            return known
    shorts = [known.rsplit("/", 1)[1] for known in VALUE_SIZES]
    raise ValueError(
        f"message type '{name}' is not supported. Use {', '.join(shorts)}.{did_you_mean(name, shorts)}"
    )


class DdsConfig(Config):
    """The DDS network."""

    domain_id: int = Field(default=0, ge=0, le=232)
    """DDS domain, as ROS_DOMAIN_ID."""
    interface: str | None = None
    """Network interface, such as `eth0` or `lo`. Null: the choice of Cyclone DDS and of CYCLONEDDS_URI."""
    peers: tuple[str, ...] = ()
    """Addresses of machines to look for robots at, where multicast does not work."""
    multicast: bool = True
    """Whether to use multicast. False: only `peers` are found."""

    @field_validator("peers", "interface")
    @classmethod
    def _plain(cls, value: object) -> object:
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None and not re.fullmatch(r"[A-Za-z0-9_.:\-]+", str(text)):
                raise ValueError(f"'{text}' is no interface or address")
        return value


class QosConfig(Config):
    """Quality of service of one topic. It must fit that of the robot."""

    reliability: Literal["reliable", "best_effort"] = "reliable"
    """`reliable` repeats lost messages; `best_effort` suits sensor data that is published so."""
    durability: Literal["volatile", "transient_local"] = "volatile"
    """`transient_local` gives the last message to late subscribers."""
    depth: int = Field(default=10, ge=1, le=1000)
    """Number of messages that are kept."""


class FieldConfig(Config):
    """Where numbers are in a message: `{attr: position, slice: [6, 12]}`."""

    attr: str = "data"
    """Path of the numbers in the message, such as `position` or `pose.position.x`."""
    slice: tuple[int, int] | tuple[tuple[int, int], ...] | None = None
    """First and end index, or several such pairs, which are joined in this order. Null: all numbers."""
    size: int | None = Field(default=None, ge=1)
    """Number of numbers of a list without `slice`."""
    max_speed: float | None = Field(default=None, gt=0.0)
    """Largest plausible change per second, in state topics. A faster one, as of swapped arms, is a fault until the old
    values return or the program is restarted. Null: not checked."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The pairs of `slice`; empty without."""
        if self.slice is None:
            return ()
        if isinstance(self.slice[0], int):
            return ((self.slice[0], self.slice[1]),)
        return tuple(self.slice)

    @field_validator("slice")
    @classmethod
    def _ordered(cls, value: object) -> object:
        pairs: Sequence[tuple[int, int]] = ()
        if isinstance(value, tuple):
            pairs = [value] if value and isinstance(value[0], int) else value
            if not pairs or not all(0 <= first < end for first, end in pairs):
                raise ValueError(f"slice is {value}: write [first, end] with 0 <= first < end")
        return value


class _Topic(Config):
    topic: str
    """Name of the topic, such as `/igris_b/packy/joint_states`."""
    msg_type: str
    """Type of its messages, such as `JointState` or `sensor_msgs/JointState`."""
    fields: dict[str, FieldConfig | str]
    """Where the numbers are: `{slice, attr}`, or the attribute's path as text."""
    qos: QosConfig = Field(default_factory=QosConfig)
    """Quality of service."""

    @field_validator("topic")
    @classmethod
    def _named(cls, value: str) -> str:
        if not _TOPIC.match(value):
            raise ValueError(f"'{value}' is no full topic name: write one like /robot/joint_states")
        return value

    @field_validator("msg_type")
    @classmethod
    def _known(cls, value: str) -> str:
        full_type(value)
        return value

    @property
    def type_name(self) -> str:
        """The full name of the message type."""
        return full_type(self.msg_type)

    def field(self, name: str) -> FieldConfig:
        """A field in its long form."""
        found = self.fields[name]
        return FieldConfig(attr=found) if isinstance(found, str) else found


class StateTopic(_Topic):
    """A topic that the robot publishes. The keys of `fields` are the names of observations."""

    expect: dict[str, Constant] = Field(default_factory=dict)
    """Values that must be in each message, such as `{name: [j1, j2]}` or `{data: ready}`. Another value is a fault."""
    sizes: dict[str, int] = Field(default_factory=dict)
    """Number of numbers in a list of the message. Default: the largest end of a slice. Another number is a fault."""
    stale_after_s: float = Field(default=0.3, gt=0.0)
    """Seconds without a new message that are a fault."""
    stamp: Literal["header", "arrival"] = "header"
    """Time of capture: from the header, if the message has one and it is not zero, or the time of arrival."""


class CommandTopic(_Topic):
    """A topic that the robot subscribes to. The keys of `fields` are the names of action parts."""

    constants: dict[str, Constant] = Field(default_factory=dict)
    """Values for other attributes, such as `{name: [j1, j2]}` or `{header.frame_id: base}`."""


class Ros2Config(Config):
    """A robot with ROS 2 topics. No ROS is needed on this machine."""

    BASIC: ClassVar[Collection[str]] = ("dds", "state", "command", "action", "control_hz")

    name: str = "ros2"
    """Name of the robot."""
    embodiment: str = ""
    """Kind of robot, for tasks and policies that need a certain one. Empty: the name."""
    control_hz: float = Field(default=20.0, gt=0.0)
    """Control ticks per second."""
    dds: DdsConfig = Field(default_factory=DdsConfig)
    """Domain and network."""
    distro: Distro = "humble"
    """ROS distribution whose message definitions are used. The supported types are equal in all of these."""
    state: tuple[StateTopic, ...] = Field(min_length=1)
    """Topics that the robot publishes."""
    command: tuple[CommandTopic, ...] = Field(min_length=1)
    """Topics that move the robot."""
    action: tuple[ActionPartConfig, ...] = Field(min_length=1)
    """Parts of the action, in the policy's order."""
    connect_s: float = Field(default=5.0, gt=0.0)
    """Seconds in which the robot must be found."""
    max_wait_s: float = Field(default=0.01, ge=0.0)
    """Longest time for which an observation waits for the next message. Should be well below a tick."""
    num_hold_messages: int = Field(default=5, ge=1, le=100)
    """How often a stop publishes the holding command, 10 ms apart."""

    @property
    def arm_ids(self) -> tuple[str, ...]:
        """By the topics that move it: all that publish to one of them drive the same robot."""
        return tuple(f"ros2 {self.dds.domain_id} {one.topic}" for one in self.command)


def texts_of(type_name: str) -> tuple[str, ...]:
    """Attributes of a message type that hold text."""
    return _TEXTS.get(type_name, ())
