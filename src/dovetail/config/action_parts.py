"""Action parts in a config, for drivers whose axes the user describes:

    robot:
      type: my_driver
      action:
        - {name: arm, kind: joint_target, unit: rad, axes: 6, low: -2.8, high: 2.8, max_speed: 1.0, measured: joint_pos}
        - {name: gripper, kind: gripper, unit: "1", low: 0, high: 1, max_speed: 2.0, hold: last}
        - {name: base, kind: velocity, unit: m/s+rad/s, axes: [vx, vy, wz], low: [-0.5, -0.5, -1], high: [0.5, 0.5, 1]}

One number stands for all axes of a part. `action_parts` turns the list into the parts of a RobotSpec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.action_parts import KINDS, ActionPart
from dovetail.core.errors import ConfigError, SpecMismatch, did_you_mean, shown

__all__ = ["ActionPartConfig", "action_parts"]

_Numbers = float | tuple[float, ...]
_POSE_AXES = ("x", "y", "z", "rx", "ry", "rz")
_MAX_AXES = 1000


class ActionPartConfig(Config):
    """One part of a robot's action: consecutive axes with the same meaning."""

    name: str = Field(min_length=1)
    """Name of the part, such as `arm`."""
    kind: str
    """Meaning of its values: joint_target, joint_velocity, ee_delta, ee_target, ee_velocity, velocity or gripper."""
    unit: str
    """Unit of its values, such as `rad`; `m+rad` for x, y, z and a rotation vector; `1` for a fraction."""
    axes: Annotated[int, Field(ge=1, le=_MAX_AXES)] | tuple[str, ...] | None = None
    """Number or names of its axes. Null: as many as there are limits, or the axes of a pose."""
    low: _Numbers
    """Smallest value, in `unit`: one number, or one per axis. Per control tick for `ee_delta`."""
    high: _Numbers
    """Largest value, in `unit`: one number, or one per axis. Per control tick for `ee_delta`."""
    max_speed: _Numbers | None = None
    """Largest speed in `unit` per second: one number, or one per axis. Velocities have only `low` and `high`."""
    hold: Literal["measured", "zero", "last"] | tuple[float, ...] | None = None
    """How it stands still. Null: `measured` for targets, `zero` for deltas and velocities, `last` for grippers."""
    frame: Literal["base", "reset", "tool"] | None = None
    """Frame of a Cartesian part: the robot's base, the pose at the last reset, or the current pose."""
    measured: str = ""
    """Observation that measures it, such as `joint_pos` or `joint_pos[0:6]`."""

    def part(self) -> ActionPart:
        """Raises ConfigError, which says what to add."""
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise ConfigError(
                f"action part '{shown(self.name)}': unknown kind '{shown(self.kind)}'. Use {', '.join(KINDS)}.{hint}"
            )
        names = self._names()
        speed = () if self.max_speed is None else _each(self.max_speed, len(names))
        try:
            return ActionPart(
                name=self.name,
                kind=self.kind,
                unit=self.unit,
                names=names,
                low=_each(self.low, len(names)),
                high=_each(self.high, len(names)),
                max_speed=speed,
                hold=KINDS[self.kind].holds[0] if self.hold is None else self.hold,
                frame=self.frame or "",
                measured=self.measured,
            )
        except SpecMismatch as error:
            raise ConfigError(str(error)) from error

    def _names(self) -> tuple[str, ...]:
        if isinstance(self.axes, tuple):
            return self.axes
        if KINDS[self.kind].is_cartesian and self.axes is None:
            return tuple(f"{self.name}_{axis}" for axis in _POSE_AXES[: 6 if "+" in self.unit else 3])
        sizes = [len(values) for values in (self.low, self.high, self.max_speed) if isinstance(values, tuple)]
        num_axes = self.axes or max(sizes, default=1)
        return (self.name,) if num_axes == 1 else tuple(f"{self.name}_{axis + 1}" for axis in range(num_axes))


def action_parts(configs: Sequence[ActionPartConfig]) -> tuple[ActionPart, ...]:
    """The parts of a robot, in the order of its action vector."""
    if not configs:
        raise ConfigError("the robot has no action parts: list at least one under `action`")
    return tuple(config.part() for config in configs)


def _each(values: _Numbers, num_axes: int) -> tuple[float, ...]:
    return values if isinstance(values, tuple) else (values,) * num_axes
