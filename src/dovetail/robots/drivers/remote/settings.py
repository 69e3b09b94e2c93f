"""Settings of a robot behind the robot protocol. `dovetail robot spec ADDRESS` writes them as a config file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from dovetail.config.action_parts import ActionPartConfig, action_parts
from dovetail.config.model import Config
from dovetail.core.errors import ConfigError, RobotError, SpecMismatch, one_line, shown
from dovetail.core.specs import ArraySpec, RobotSpec

__all__ = ["ObservationConfig", "RemoteRobotConfig", "RemoteSpecConfig"]

_MAX_BYTES = 1 << 28


class ObservationConfig(Config):
    """One observation of the robot."""

    shape: tuple[int, ...] = Field(min_length=1, max_length=3)
    """Its sizes: [6] for six joints, [480, 640, 3] for a picture."""
    dtype: Literal["float32", "uint8", "uint16"] = "float32"
    """float32 for measured values, uint8 for pictures [H, W, 3], uint16 for depth [H, W, 1]."""
    names: tuple[str, ...] = ()
    """Names of its entries. Empty: none."""

    def array(self) -> ArraySpec:
        return ArraySpec(shape=self.shape, dtype=self.dtype, names=self.names)


class RemoteSpecConfig(Config):
    """What the robot is: its observations and actions, as the class on the robot's computer describes them."""

    name: str = Field(min_length=1, max_length=100)
    """Name of the robot."""
    embodiment: str = ""
    """Robots with the same embodiment can share a policy. Empty: the name."""
    control_hz: float = Field(gt=0.0, le=1000.0)
    """Control ticks per second."""
    observation: dict[str, ObservationConfig] = Field(min_length=1)
    """Its observations by name."""
    action: tuple[ActionPartConfig, ...] = Field(min_length=1)
    """The parts of its action, in the order of the action vector."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            spec = self.robot_spec()
        except (ConfigError, SpecMismatch) as error:
            raise ValueError(str(error)) from error
        if not spec.name.isprintable():
            raise ValueError(f"the name '{shown(spec.name)}' has characters that cannot be printed")
        size = sum(math.prod(one.shape) * (4, 1)[one.dtype == "uint8"] for one in spec.observation.values())
        if size > _MAX_BYTES:
            raise ValueError(f"one observation has {size} bytes, but at most {_MAX_BYTES} can be sent")
        return self

    def robot_spec(self) -> RobotSpec:
        return RobotSpec(
            name=self.name,
            embodiment=self.embodiment or self.name,
            observation={key: one.array() for key, one in self.observation.items()},
            parts=action_parts(self.action),
            control_hz=self.control_hz,
        )

    @classmethod
    def from_robot(cls, data: Any) -> RemoteSpecConfig:
        """The spec that a robot's computer sent. Raises RobotError if it is invalid."""
        try:
            return cls.from_mapping(data if isinstance(data, Mapping) else {})
        except ValidationError as error:
            first = error.errors()[0]
            where = shown(".".join(map(str, first["loc"]))) or "spec"
            why = shown(first["msg"], max_chars=300)
            raise RobotError(
                f"the robot's computer has an invalid spec: {where}: {why}. Change the spec of its class"
            ) from error
        except (ValueError, RecursionError) as error:  # nested too deeply, or text with half a character
            raise RobotError(f"the robot's computer has an invalid spec: {shown(one_line(error))}") from error


class RemoteRobotConfig(RemoteSpecConfig):
    """A robot behind Dovetail's robot protocol."""

    BASIC: ClassVar[Collection[str]] = ("address", "token_file", "control_hz")

    address: str
    """Address of the robot's computer: host:port, or [host]:port for IPv6."""
    token_file: str | None = None
    """File with the token of the robot's computer, readable only by its owner. The token itself is not a setting, because
    runs store their settings."""
    token_env: str = "DOVETAIL_ROBOT_TOKEN"
    """Environment variable with the token, used without token_file."""
    connect_timeout_s: float = Field(default=3.0, gt=0.0)
    """Maximum time to connect, in seconds."""
    timeout_s: float = Field(default=0.25, gt=0.0, le=10.0)
    """Maximum time for an observation or a command, in seconds. The robot refuses a command that arrives later."""
    max_clock_error_s: float = Field(default=0.02, gt=0.0)
    """Largest uncertainty of the robot's clock, in seconds. A slower network is a fault."""

    @property
    def arm_ids(self) -> tuple[str, ...]:
        return (f"remote {self.address.lower().replace('localhost', '127.0.0.1')}",)

    @field_validator("address")
    @classmethod
    def check_address(cls, address: str) -> str:
        """Raises ValueError."""
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise ValueError("should be host:port, such as 192.168.1.5:7412")
        return address
