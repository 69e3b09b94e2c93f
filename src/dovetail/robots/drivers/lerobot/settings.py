"""Settings of LeRobot devices, and the axes of the SO-100 and SO-101."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

from pydantic import Field, field_validator

from dovetail.config.action_parts import ActionPartConfig
from dovetail.config.model import Config
from dovetail.robots.drivers.lerobot.units import LinearUnit

__all__ = ["SO_ARMS", "SO_JOINTS", "SO_LEADERS", "BridgeConfig", "LeRobotConfig", "LeRobotLeaderConfig"]

SO_ARMS = ("so100_follower", "so101_follower")
SO_LEADERS = ("so100_leader", "so101_leader")
SO_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
_SO_HIGH_RAD = (1.92, 1.75, 1.69, 1.66, 2.74)  # the middle of the calibrated range is zero


class BridgeConfig(Config):
    """The process that runs LeRobot, and how to talk to it."""

    BASIC: ClassVar[Collection[str]] = ("python", "config")

    python: str = Field(min_length=1)
    """Interpreter of the environment in which LeRobot is installed, such as .venv-lerobot/bin/python."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of LeRobot's config class: port, id, calibration_dir, use_degrees, cameras, and so on."""
    imports: tuple[str, ...] = ()
    """Modules to import before LeRobot: plugins that it does not find by the name of their distribution."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the process, in addition to ours without PYTHON*."""
    timeout_s: float = Field(default=0.5, gt=0.0)
    """A missing answer is a fault after so many seconds."""
    retries: int = Field(default=2, ge=0, le=10)
    """A measurement with a communication error is repeated so often within `timeout_s`. Commands are never repeated."""
    start_timeout_s: float = Field(default=120.0, gt=0.0)
    """Longest time for importing LeRobot and connecting the device, in seconds."""
    linger_s: float = Field(default=10.0, ge=0.0)
    """The process ends so many seconds after its last client has gone; a run that starts again finds the arm held."""

    @field_validator("config")
    @classmethod
    def _plain(cls, config: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(config, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"has a value that is no JSON: {error}") from error
        if "type" in config:
            raise ValueError("has a `type`: the type of the device stands beside `config`")
        return config

    def bridge_settings(self, kind: str, device: str, *, release: bool) -> dict[str, Any]:
        """What the bridge process is started with."""
        config = dict(self.config)
        if kind == "robot" and device in SO_ARMS:
            config.setdefault("disable_torque_on_disconnect", release)
        return {
            "kind": kind,
            "device": device,
            "config": config,
            "imports": list(self.imports),
            "linger_s": self.linger_s,
            "retries": self.retries,
            "timeout_s": self.timeout_s,
            "release": release,
        }

    def bridge_id(self, settings: dict[str, Any]) -> str:
        """Equal for all processes that share one bridge."""
        facts = [self.python, self.env, settings]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class LeRobotConfig(BridgeConfig):
    """A LeRobot robot."""

    BASIC: ClassVar[Collection[str]] = ("robot",)

    robot: str = Field(min_length=1)
    """LeRobot's type name, such as so101_follower, or that of an installed plugin."""
    control_hz: float = Field(default=30.0, gt=0.0)
    """Control ticks per second."""
    action: tuple[ActionPartConfig, ...] = ()
    """Action parts. The axis NAME is LeRobot's action NAME.pos unless `keys` says otherwise. Empty: those of an SO-101."""
    keys: dict[str, str] = Field(default_factory=dict)
    """LeRobot's action key of an axis, where it is not AXIS.pos."""
    observation: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Observations and the LeRobot keys that they consist of, such as joint_pos: [a.pos, b.pos]. Empty: an SO-101's."""
    units: dict[str, str | LinearUnit] = Field(default_factory=dict)
    """Unit of each LeRobot key: deg, rad, percent, 1, m, mm, deg/s, rad/s, m/s, mm/s, or {scale, offset}."""
    images: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Height and width of each camera, where they differ from `height` and `width` in config.cameras."""
    release: bool = False
    """Whether the motors lose their torque when the process ends. An SO-101 then falls. False: it holds."""

    @field_validator("config")
    @classmethod
    def _without_limit(cls, config: dict[str, Any]) -> dict[str, Any]:
        if config.get("max_relative_target") is not None:
            raise ValueError("has max_relative_target: remove it, because `action` and `safety` limit the motion")
        return config

    @property
    def arm_ids(self) -> tuple[str, ...]:
        """Its ports and addresses. Without any: all of LeRobot's config."""
        ports = sorted(set(_ports(self.config)))
        return tuple(f"lerobot {port}" for port in ports) or (
            f"lerobot {self.robot} {json.dumps(self.config, sort_keys=True)}",
        )

    def settings_of_bridge(self) -> dict[str, Any]:
        return self.bridge_settings("robot", self.robot, release=self.release)


class LeRobotLeaderConfig(BridgeConfig):
    """A LeRobot teleoperator, such as a leader arm."""

    BASIC: ClassVar[Collection[str]] = ("teleoperator", "follow")

    teleoperator: str = Field(min_length=1)
    """LeRobot's type name, such as so101_leader, or that of an installed plugin."""
    axes: tuple[str, ...] = ()
    """Names of the axes, in order. Empty: those of an SO-101."""
    keys: dict[str, str] = Field(default_factory=dict)
    """LeRobot's action key of an axis, where it is not AXIS.pos."""
    units: dict[str, str | LinearUnit] = Field(default_factory=dict)
    """Unit of each LeRobot key, as in `robot.units`."""
    axis_units: dict[str, str] = Field(default_factory=dict)
    """Unit in which an axis is given to the follower: rad, deg, m or 1. Without an entry: the SI unit."""
    follow: bool = False
    """Whether the leader's motors follow the robot while the policy drives. Needs a leader with torque (SO-101: 0.6)."""
    follow_speed: float = Field(default=0.5, gt=0.0)
    """Largest speed of the leader's motors, in the unit of each axis per second."""


def _ports(config: dict[str, Any]) -> Iterator[str]:
    """The values of `port`, `left_arm_port`, `remote_ip` and the like, also of arms inside a config; not of cameras."""
    for key, value in config.items():
        if isinstance(value, dict) and key != "cameras":
            yield from _ports(value)
        elif isinstance(value, str) and value and key.rpartition("_")[2] in ("port", "ip", "address", "host"):
            yield os.path.realpath(value) if value.startswith("/") else value  # a link and its port are one arm


def so_action() -> tuple[ActionPartConfig, ...]:
    """The parts of an SO-100 or SO-101 with `use_degrees`. Zero is the middle of the calibrated range."""
    return (
        ActionPartConfig(
            name="arm",
            kind="joint_target",
            unit="rad",
            axes=SO_JOINTS,
            low=tuple(-high for high in _SO_HIGH_RAD),
            high=_SO_HIGH_RAD,
            max_speed=1.0,
            hold="measured",
            measured="joint_pos",
        ),
        ActionPartConfig(
            name="gripper",
            kind="gripper",
            unit="1",
            low=0.0,
            high=1.0,
            max_speed=2.0,
            hold="last",
            measured="gripper",
        ),
    )


def so_observation() -> dict[str, tuple[str, ...]]:
    return {"joint_pos": tuple(f"{joint}.pos" for joint in SO_JOINTS), "gripper": ("gripper.pos",)}


def so_units() -> dict[str, str | LinearUnit]:
    return {**{f"{joint}.pos": "deg" for joint in SO_JOINTS}, "gripper.pos": "percent"}
