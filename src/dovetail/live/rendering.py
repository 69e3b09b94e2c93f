"""Pictures of a simulation that has no camera of its own: drawn here, from what is recorded of it, at no cost to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dovetail.config.schema import PluginSection
from dovetail.core.errors import DovetailError
from dovetail.core.types import Array

if TYPE_CHECKING:
    from dovetail.robots.sim.film import Film

__all__ = ["LiveFilm"]

_SIZE = (320, 240)  # width, height


class LiveFilm:
    """One world and one GL context, made when the first picture is wanted. None where there is nothing to film."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._film: Film | None = None
        self._camera: str | None = None
        self._asked = False

    @property
    def cameras(self) -> tuple[str, ...]:
        if not self._asked:
            self._asked = True
            config = self._config()
            if config["robot"]["type"] == "sim":
                self._camera = config["run"]["showcase_camera"]
        return (self._camera,) if self._camera else ()

    def picture(self, camera: str, trace: Mapping[str, Array]) -> Array | None:
        if camera not in self.cameras or "sim_qpos" not in trace:
            return None
        if self._film is None:
            try:
                self._film = self._open(camera)
            except Exception:
                self._camera = None  # without GL, say: not to be tried again for each picture
                raise
        return next(self._film.frames({name: value[None] for name, value in trace.items()}))

    def close(self) -> None:
        if self._film is not None:
            self._film.close()
            self._film = None

    def _open(self, camera: str) -> Film:
        # imported here: real robots are watched without MuJoCo
        from dovetail.robots.sim.film import Film
        from dovetail.robots.sim.robot import SimRobot

        config = self._config()
        task = PluginSection.parse("task", config["task"]).build() if config.get("task") else None
        robot = PluginSection.parse("robot", config["robot"]).build(task=task)
        if not isinstance(robot, SimRobot):
            raise DovetailError(f"robot '{config['robot']['type']}' is no simulation")
        width, height = _SIZE
        return Film(robot.world, camera=camera, width=width, height=height)

    def _config(self) -> dict[str, Any]:
        """As it was resolved, of which only these parts are read: the whole would bring torch with its policy."""
        config: dict[str, Any] = yaml.safe_load((self._folder / "config.yaml").read_text("utf-8"))
        return config
