"""Settings of the Franka driver. This module loads nothing else, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from dovetail.config.model import Config
from dovetail.core.errors import did_you_mean

__all__ = ["COMPLIANCE", "EmulatedFrankaConfig", "FrankaConfig", "GripperFamily", "Load"]

GripperFamily = Literal["serl_robotiq", "hil_serl_robotiq", "serl_franka", "hil_serl_franka", "none"]

COMPLIANCE: Mapping[str, tuple[float, float]] = {  # name: smallest and largest value that the controller takes
    "translational_stiffness": (0.0, 6000.0),
    "translational_damping": (0.0, 400.0),
    "rotational_stiffness": (0.0, 300.0),
    "rotational_damping": (0.0, 30.0),
    "nullspace_stiffness": (0.0, 100.0),
    "joint1_nullspace_stiffness": (0.0, 100.0),
    **{
        f"{kind}_clip_{sign}{axis}": (0.0, 0.1)
        for kind in ("translational", "rotational")
        for sign in ("", "neg_")
        for axis in "xyz"
    },
    "translational_Ki": (0.0, 100.0),
    "rotational_Ki": (0.0, 100.0),
}


class Load(Config):
    """What the gripper carries, for HIL-SERL's `/set_load`."""

    mass_kg: float = Field(ge=0.0, le=3.0)
    """Mass in kg."""
    center_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Center of mass in the frame of the flange, in meters."""
    inertia: tuple[float, float, float, float, float, float, float, float, float] = (0.0,) * 9
    """Inertia matrix by columns, in kg m^2."""


class FrankaConfig(Config):
    """One or two Franka arms behind SERL's HTTP server."""

    BASIC: ClassVar[Collection[str]] = ("address", "gripper", "control_hz")

    address: str = "127.0.0.1:5000"
    """HOST:PORT of the server; of the left arm if there are two."""
    right_address: str | None = None
    """HOST:PORT of the right arm's server. Null: one arm."""
    gripper: GripperFamily
    """Server and gripper, because `gripper_pos` means something else in each."""
    gripper_axis: bool = True
    """Whether actions have a gripper axis. False: the driver never moves the gripper, such as when it holds a tool."""
    control_hz: float = Field(default=10.0, gt=0.0, le=100.0)
    """Control ticks per second."""
    max_step_m: float = Field(default=0.01, gt=0.0, le=0.05)
    """Largest translation of one action, per axis in meters."""
    max_turn_rad: float = Field(default=0.05, gt=0.0, le=0.3)
    """Largest rotation of one action, per axis in rad."""
    max_lead_m: float = Field(default=0.02, gt=0.0, le=0.1)
    """Largest distance of the equilibrium from the measured pose, per axis in meters."""
    max_lead_rad: float = Field(default=0.1, gt=0.0, le=0.5)
    """Largest rotation of the equilibrium from the measured pose, per axis in rad."""
    compliance: dict[str, float] = Field(default_factory=dict)
    """Parameters of the impedance controller, sent before the first motion. Those that are absent stay as they are."""
    load: Load | None = None
    """What the gripper carries; HIL-SERL's server only. Null: leave the server's setting."""
    joint_reset_every: int = Field(default=0, ge=0)
    """Let the server drive to its reset joints before each n-th episode. STOP cannot interrupt this. 0: never."""
    joint_reset_timeout_s: float = Field(default=60.0, gt=41.0, le=300.0)
    """Seconds after which a joint reset is an error. It takes 20 to 41 s."""
    timeout_s: float = Field(default=0.25, gt=0.0, le=2.0)
    """Seconds after which a missing answer is an error."""

    @property
    def arm_ids(self) -> tuple[str, ...]:
        addresses = [one for one in (self.address, self.right_address) if one is not None]
        return tuple(f"franka {one.lower().replace('localhost', '127.0.0.1')}" for one in addresses)

    @field_validator("address", "right_address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, _, port = value.removeprefix("http://").rstrip("/").rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
            raise ValueError(f"'{value}' is no address: write HOST:PORT, such as 172.16.0.1:5000")
        return f"{host}:{port}"

    @field_validator("compliance")
    @classmethod
    def _within_ranges(cls, values: dict[str, float]) -> dict[str, float]:
        for name, value in values.items():
            if name not in COMPLIANCE:
                raise ValueError(f"there is no compliance parameter '{name}'.{did_you_mean(name, COMPLIANCE)}")
            low, high = COMPLIANCE[name]
            if not low <= value <= high:
                raise ValueError(
                    f"{name} is {value:g}, but its range is {low:g} to {high:g}: the server would clamp it silently. "
                    f"Set it to {high if value > high else low:g}"
                )
        return values

    @model_validator(mode="after")
    def _different_arms(self) -> Self:
        if self.right_address == self.address:
            raise ValueError(f"both arms have the address {self.address}: each arm has a server of its own")
        return self


class EmulatedFrankaConfig(FrankaConfig):
    """An arm of `dovetail emulate franka`, in the scene of a simulated task."""

    BASIC: ClassVar[Collection[str]] = ("simulated_time",)

    gripper: GripperFamily = "hil_serl_franka"
    """Server and gripper, as in the emulator's settings."""
    simulated_time: bool = True
    """True: time passes in the emulator only while the control loop waits (`lockstep=true`). False: real time."""
    token: str | None = None
    """Token of the emulator's own endpoints. Null: read the file that an emulator of this user has written."""

    @model_validator(mode="after")
    def _one_arm(self) -> Self:
        if self.right_address is not None:
            raise ValueError("an emulated scene has one arm: remove right_address, or use robot.type=franka")
        return self
