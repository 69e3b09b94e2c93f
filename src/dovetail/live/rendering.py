"""Images of a simulation without cameras: rendered in the console's process from the recorded simulator state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config.load import saved_values
from dovetail.config.schema import PluginSection
from dovetail.core.errors import DovetailError
from dovetail.core.types import Array

if TYPE_CHECKING:
    from dovetail.robots.sim.episode_renderer import EpisodeRenderer

__all__ = ["LiveRenderer"]

_SIZE = (320, 240)  # width, height


class LiveRenderer:
    """Creates a simulated world and a GL context for the first image. A robot that is not simulated has no cameras here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._film: EpisodeRenderer | None = None
        self._camera: str | None = None
        self._config_was_read = False

    @property
    def cameras(self) -> tuple[str, ...]:
        if not self._config_was_read:
            self._config_was_read = True
            config = self._config()
            if config["robot"]["type"] == "sim":
                self._camera = config["run"].get("video_camera") or config["run"]["showcase_camera"]  # up to 0.6
        return (self._camera,) if self._camera else ()

    def image(self, camera: str, trace: Mapping[str, Array]) -> Array | None:
        if camera not in self.cameras or "sim_qpos" not in trace:
            return None
        if self._film is None:
            try:
                self._film = self._open(camera)
            except Exception:
                self._camera = None  # for example without GL: do not try again for each image
                raise
        return next(self._film.frames({name: value[None] for name, value in trace.items()}))

    def close(self) -> None:
        if self._film is not None:
            self._film.close()
            self._film = None

    def _open(self, camera: str) -> EpisodeRenderer:
        # imported here: real robots do not need MuJoCo
        from dovetail.robots.sim.episode_renderer import EpisodeRenderer
        from dovetail.robots.sim.robot import SimRobot

        config = self._config()
        task = PluginSection.parse("task", config["task"]).build() if config.get("task") else None
        robot = PluginSection.parse("robot", config["robot"]).build(task=task)
        if not isinstance(robot, SimRobot):
            raise DovetailError(f"robot '{config['robot']['type']}' is not a simulation")
        width, height = _SIZE
        return EpisodeRenderer(robot.world, camera=camera, width=width, height=height)

    def _config(self) -> dict[str, Any]:
        """The resolved config as plain values: parsing its policy section would load torch."""
        return saved_values(self._folder)
