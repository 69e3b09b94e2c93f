"""Which size of the images a policy looks at, in acting and in learning."""

from __future__ import annotations

from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresImageSize, PrefersImageSize

__all__ = ["image_size"]


def image_size(config: RunConfig) -> int | None:
    """Longer side of the images that the policy looks at, in pixels. None: the camera's own size."""
    replay, policy = config.replay.config, config.policy.config
    if not isinstance(replay, ConfiguresImageSize):
        return None
    if replay.image_size == "auto" and isinstance(policy, PrefersImageSize):
        return policy.preferred_image_size
    return replay.max_side
