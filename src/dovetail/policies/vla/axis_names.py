"""Axes by name: which of the robot's axes a checkpoint means, as far as its folder says so."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from dovetail.core.errors import PolicyWarning, SpecMismatch
from dovetail.core.specs import RobotSpec
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.settings import VlaConfig

__all__ = ["names_in_another_order", "relative_axes", "state_names"]

_SUFFIX = re.compile(r"[._](pos|position)$")


def names_in_another_order(checkpoint: Checkpoint, config: VlaConfig, robot: RobotSpec) -> tuple[str, ...]:
    """The robot's names of the folder's action axes, if they are in another order; else the order is the same.

    Names are compared without what LeRobot's datasets add, such as `.pos`. Other names may be other words for the same axes,
    or those of another robot: warn, unless settings choose the axes or the statistics."""
    ours, theirs = robot.action.names, checkpoint.action_names
    by_name = {_plain(name): name for name in ours}
    found = tuple(by_name.get(_plain(name), "") for name in theirs)
    if len(by_name) == len(ours) and sorted(found) == sorted(ours):
        return found if found != tuple(ours) else ()
    if ours and theirs and config.stats is None and not config.fit_stats:
        warnings.warn(
            f"{checkpoint.folder} has the action axes {_listed(theirs)}, and robot '{robot.name}' has {_listed(ours)}: the "
            "order of the robot is used. If it is right, name it in policy.action_axes; for another robot, set policy.stats",
            PolicyWarning,
            stacklevel=2,
        )
    return ()


def _plain(name: str) -> str:
    """shoulder_pan of Shoulder_Pan.pos."""
    return _SUFFIX.sub("", name.lower().removeprefix("action."))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def state_names(
    checkpoint: Checkpoint, config: VlaConfig, robot: RobotSpec, names: Sequence[str]
) -> tuple[str, ...]:
    """Folders name action axes only. If those are in another order (`names`), so is the state."""
    if config.state_axes or config.action_axes or not names:
        return config.state_axes
    low_dim = {key: spec for key, spec in robot.observation.items() if spec.dtype == "float32"}
    ours = [name for key in config.state or low_dim for name in (low_dim[key].names if key in low_dim else ())]
    if sorted(ours) == sorted(names):
        return tuple(names)
    raise SpecMismatch(
        f"{checkpoint.folder} has the action axes of robot '{robot.name}' in another order ({', '.join(names[:8])}), so the "
        "order of its state must be told. Set policy.state_axes"
    )


def relative_axes(
    checkpoint: Checkpoint, config: VlaConfig, robot: RobotSpec, names: Sequence[str]
) -> tuple[str, ...]:
    """Names of the robot's axes whose actions are relative to the state. `names` are in the checkpoint's order."""
    if config.relative_axes is not None:
        return config.relative_axes
    if not checkpoint.relative_actions:
        return ()
    ours = names or robot.action.names
    theirs = checkpoint.action_names
    if not theirs:  # LeRobot then ignores the exceptions
        return tuple(ours)
    if len(ours) != len(theirs):
        raise SpecMismatch(
            f"{checkpoint.folder} has relative actions of {len(theirs)} axes ({', '.join(theirs[:8])}), but robot "
            f"'{robot.name}' has {len(ours)} named ones. Set policy.relative_axes"
        )
    excluded = [part.lower() for part in checkpoint.relative_exclude if part]
    return tuple(
        own for own, name in zip(ours, theirs, strict=True) if not any(part in name.lower() for part in excluded)
    )
