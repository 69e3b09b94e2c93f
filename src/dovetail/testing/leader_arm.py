"""An emulated leader arm: a file that a test, or a person with an editor, writes.

    leader = EmulatedLeader(EmulatedLeaderConfig(path="leader.json", axes=("joint1", "joint2")))
    EmulatedLeader.put(Path("leader.json"), (0.1, -0.2))          # the person moves it
    Path("leader.json").unlink()                                  # it is unplugged

    operator: {type: leader, leader: {type: "dovetail.testing.leader_arm:EmulatedLeader", path: l.json, axes: [joint1]}}

Its motors write the positions that they are told to follow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.errors import RobotError
from dovetail.core.types import Array

__all__ = ["EmulatedLeader", "EmulatedLeaderConfig"]


class EmulatedLeaderConfig(Config):
    """An emulated leader arm."""

    path: str
    """File with the positions, a JSON list."""
    axes: tuple[str, ...]
    """Names of the positions."""
    units: tuple[str, ...] = ()
    """Units of the positions. Empty: rad."""
    can_follow: bool = False
    """Whether it has motors."""


class EmulatedLeader:
    """See the Leader contract."""

    Config: ClassVar[type[EmulatedLeaderConfig]] = EmulatedLeaderConfig
    name = "emulated_leader"

    def __init__(self, config: EmulatedLeaderConfig) -> None:
        self._path = Path(config.path)
        self.axes, self.can_follow = config.axes, config.can_follow
        self.units = config.units or ("rad",) * len(config.axes)

    @staticmethod
    def put(path: Path, positions: Sequence[float] | Array) -> None:
        """Move the leader."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps([float(one) for one in positions]))
        new.replace(path)

    def read(self) -> Array:
        try:
            return np.array(json.loads(self._path.read_text()), np.float64)
        except (OSError, ValueError) as error:
            raise RobotError(f"leader '{self.name}' is gone: {error}") from error

    def follow(self, positions: Array) -> None:
        if self.can_follow:
            self.put(self._path, positions)

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
