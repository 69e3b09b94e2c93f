"""Settings of the Franka emulator."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dovetail.config.model import Config

__all__ = ["FrankaEmulatorConfig"]


class FrankaEmulatorConfig(Config):
    """The HTTP server of SERL or HIL-SERL, with an arm in MuJoCo."""

    host: str = Field(default="127.0.0.1", pattern=r"^127\.\d+\.\d+\.\d+$")
    """Loopback address. Two arms may have 127.0.0.1 and 127.0.0.2, as in the original."""
    port: int = Field(default=5000, ge=0, le=65535)
    """Port; 0: any free one."""
    server: Literal["serl", "hil_serl"] = "hil_serl"
    """Which original to emulate: `/set_load` and `/close_gripper_slow` exist in HIL-SERL only."""
    gripper: Literal["robotiq", "franka", "none"] = "franka"
    """The gripper behind the server."""
    task: str | None = None
    """Scene of a simulated task, such as peg_insertion. Null: a table."""
    lockstep: bool = False
    """Time passes only by requests of the driver, as fast as the processor allows."""
    time_scale: float = Field(default=1.0, gt=0.0, le=100.0)
    """Speed of the emulated time relative to real time, unless it is in lockstep."""
    keep_alive: bool = True
    """Keep connections open. Older versions of Flask's server close them after each answer."""
    reset_joints: tuple[float, float, float, float, float, float, float] = (0.0, 0.0, 0.0, -1.9, 0.0, 2.0, 0.0)
    """Joint angles after `/jointreset`, in rad."""
    start: Literal["home", "reset"] = "home"
    """Joints at the start: of our simulated arm, with the gripper down over the table, or `reset_joints`."""
    noise_seed: int = 0
    """Seed of the sensor noise."""
    token: str | None = None
    """Token of the emulator's own endpoints. Null: a random one, written to a file of this user."""
    misbehave: str = ""
    """Misbehavior from the start: KIND, KIND:PATH or KIND:PATH:COUNT, separated by commas."""

    @model_validator(mode="after")
    def _lockstep_has_no_scale(self) -> Self:
        if self.lockstep and self.time_scale != 1.0:
            raise ValueError("time_scale has no effect with lockstep=true: remove one of them")
        return self
