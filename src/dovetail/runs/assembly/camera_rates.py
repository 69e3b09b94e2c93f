"""The frame rates of a config's cameras."""

from __future__ import annotations

from dovetail.config.schema import RunConfig
from dovetail.core.abilities import LimitsFrameRate

__all__ = ["max_camera_fps"]


def max_camera_fps(config: RunConfig) -> dict[str, float]:
    """Most frames per second of each image, for cameras that keep to a rate."""
    rates: dict[str, float] = {}
    for name, section in config.cameras.items():
        if isinstance(section.config, LimitsFrameRate):
            rates |= dict.fromkeys((name, f"{name}_depth"), section.config.max_fps)
    return rates
