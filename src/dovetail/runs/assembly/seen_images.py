"""How large the images are that a policy looks at, in acting and in learning, and how larger ones are scaled down.

A policy that corrects a frozen base gets the images that the base was trained with: both look at the same ones.
"""

from __future__ import annotations

from pathlib import Path

from dovetail.config.load import load_saved
from dovetail.config.model import Config
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import (
    ConfiguresImageSize,
    ConfiguresProposal,
    PrefersImageScaling,
    PrefersImageSize,
)
from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.image_sizes import SCALINGS, Scaling
from dovetail.core.images import seen_robot
from dovetail.core.specs import RobotSpec
from dovetail.runs.assembly.base_policy import find_base

__all__ = ["check_base_images", "image_scaling", "image_size"]


def image_size(config: RunConfig) -> int | None:
    """Longer side of the images that the policy looks at, in pixels. None: the camera's own size."""
    replay, policy = config.replay.config, _seeing(config)
    if not isinstance(replay, ConfiguresImageSize):
        return None
    if replay.image_size == "auto" and isinstance(policy, PrefersImageSize):
        return policy.preferred_image_size
    return replay.max_side


def image_scaling(config: RunConfig) -> Scaling:
    """How larger images become that size."""
    replay, policy = config.replay.config, _seeing(config)
    if isinstance(replay, ConfiguresImageSize):
        for scaling in SCALINGS:
            if replay.image_scaling == scaling:
                return scaling
    return policy.preferred_image_scaling if isinstance(policy, PrefersImageScaling) else "averaged"


def check_base_images(config: RunConfig, robot: RobotSpec) -> None:
    """Raise UsageError if the policy's base comes from a run in which it looked at other images of this robot.

    A run that was deleted since is not checked again."""
    policy = config.policy.config
    if not isinstance(policy, ConfiguresProposal) or "run" not in policy.base:
        return
    try:
        of_base = load_saved(Path(policy.base["run"]).expanduser(), quiet=True).config
    except DovetailError:
        return
    ours, theirs = (
        seen_robot(robot, image_size(one), image_scaling(one)).observation for one in (config, of_base)
    )
    if different := [key for key in ours if ours[key] != theirs[key]]:
        size = image_size(of_base)
        raise UsageError(
            f"the base of run {policy.base['run']} was trained with images '{different[0]}' of "
            f"{theirs[different[0]].describe()} ({theirs[different[0]].scaling}), but would see "
            f"{ours[different[0]].describe()} ({ours[different[0]].scaling}). Set "
            f"replay.image_size={'full' if size is None else size} and replay.image_scaling={image_scaling(of_base)}"
        )


def _seeing(config: RunConfig) -> Config:
    """The settings of the policy, or of its base."""
    policy = config.policy.config
    if isinstance(policy, ConfiguresProposal) and "type" in policy.base:
        return find_base(policy.base, copies=None).section.config
    return policy
