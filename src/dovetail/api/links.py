"""How a caller connects an input of its own, such as the keys of the terminal, to the arm of an evaluation or comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.config.schema import RunConfig
from dovetail.core.specs import RobotSpec
from dovetail.live.run_stop import RunStop

if TYPE_CHECKING:
    from dovetail.live.link import LiveLink

__all__ = ["OnLink", "connect_nothing"]

OnLink = Callable[[RunConfig, "LiveLink", RobotSpec, RunStop], None]
"""Called with each link to an arm before it opens: the config of the arm, the link, the robot, and the stop of all arms."""


def connect_nothing(config: RunConfig, link: LiveLink, robot: RobotSpec, stop: RunStop) -> None:
    """The default: only the console and `dovetail stop` reach the arm."""
