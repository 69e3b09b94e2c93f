"""Targets of joints and grippers as offsets from the position that the observation measures.

Absolute targets, scaled by the whole range of a joint, are almost equal to the measured position: a network that copies the
position has a small loss and an arm that drifts. An offset is what the policy has to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["RelativeTargets"]

_KINDS = ("joint_target", "gripper")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The axes of a part, and the observation that measures them."""

    axes: slice
    key: str
    columns: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeTargets:
    """Which axes are offsets, and how large an offset can be."""

    measured: tuple[_Measured, ...]
    mask: Array  # bool [A]
    reach: Array  # float32 [A]: how far an axis can move during a chunk, where the mask is true

    @classmethod
    def of(cls, names: Sequence[str], robot: RobotSpec, spec: PolicySpec) -> Self:
        """For the action parts with these names. Raises SpecMismatch if the robot or the policy lacks what they need."""
        size = robot.action.shape[0]
        mask, reach = np.zeros(size, np.bool_), np.ones(size, np.float32)
        measured: list[_Measured] = []
        for name in names:
            part, axes = robot.part(name), robot.slice_of(name)
            key, columns = part.measured_key, part.measured_slice
            problem = None
            if part.kind not in _KINDS:
                problem = f"is a {part.kind}. Only {' and '.join(_KINDS)} can be relative"
            elif not part.max_speed or not all(part.max_speed):
                problem = "has no max_speed, which limits its offset"
            elif key not in spec.observation:
                problem = (
                    f"is measured by '{key}'. Add it to policy.inputs" if key else "has no `measured` observation"
                )
            elif len(range(*columns.indices(spec.observation[key].shape[0]))) != part.num_axes:
                problem = f"has {part.num_axes} axes, but its observation '{key}' has another number of values"
            if problem is not None:
                raise SpecMismatch(f"policy.relative_parts: part '{name}' of robot '{robot.name}' {problem}")
            mask[axes] = True
            reach[axes] = np.array(part.max_speed, np.float32) * spec.horizon / robot.control_hz
            measured.append(_Measured(axes=axes, key=key, columns=columns))
        return cls(measured=tuple(measured), mask=mask, reach=reach)

    def origin(self, observations: Mapping[str, Tensor]) -> Tensor:
        """The newest measured position of each relative axis, zero for the others: [B, A]."""
        newest = {m.key: observations[m.key] for m in self.measured}
        newest = {key: values[:, -1] if values.ndim == 3 else values for key, values in newest.items()}
        first = next(iter(newest.values()))
        origin = first.new_zeros(len(first), len(self.mask))
        for m in self.measured:
            origin[:, m.axes] = newest[m.key][:, m.columns]
        return origin
