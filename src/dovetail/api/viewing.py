"""Options for watching a simulated robot."""

from __future__ import annotations

from dataclasses import replace

from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError

__all__ = ["with_viewer"]


def with_viewer(config: RunConfig, *, viewer: bool = False, realtime: bool = False) -> RunConfig:
    """The config with the simulator's window open, or at the speed of the real clock. Such a config is never saved."""
    wanted = {name: True for name, on in (("viewer", viewer), ("realtime", realtime)) if on}
    for name in wanted:
        if name not in type(config.robot.config).model_fields:
            raise UsageError(f"--{name} is for simulated robots, but this robot is '{config.robot.type}'")
    if not wanted:
        return config
    robot = replace(config.robot, config=config.robot.config.model_copy(update=wanted))
    return config.model_copy(update={"robot": robot})
