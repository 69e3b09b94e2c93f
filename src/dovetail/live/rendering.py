"""Images of a simulation: rendered in the console's process from the recorded simulator state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config.load import saved_values
from dovetail.config.schema import PluginSection
from dovetail.core.errors import DovetailError
from dovetail.core.types import Array

if TYPE_CHECKING:
    from dovetail.robots.sim.episode_renderer import EpisodeRenderer
    from dovetail.robots.sim.robot import SimRobot

__all__ = ["LiveRenderer"]

_SIZES = ((640, 480), (480, 360))  # width, height: the first one that this machine renders fast enough
_SLOW_S = 0.045  # an image that takes longer leaves too little time for 15 images per second
_NUM_TIMED = 5  # images, before a smaller size is tried


class LiveRenderer:
    """Creates a simulated world when its cameras are asked for. A robot that is not simulated has no cameras here.

    `arm` is the robot's name in the run: with several robots, each may have its own task.
    """

    def __init__(self, folder: Path, *, arm: str = "robot") -> None:
        self._folder, self._arm = folder, arm
        self._robot: SimRobot | None = None
        self._renderers: dict[str, EpisodeRenderer] = {}  # by camera
        self._cameras: tuple[str, ...] | None = None
        self._size = 0
        self._slow: list[float] = []  # seconds of the last images

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras of the scene. The camera of the run's videos comes first."""
        if self._cameras is None:
            self._cameras = ()  # if the world cannot be built, it is not tried again
            config = self._config()
            if config["robot"]["type"] == "sim":
                first = config["run"].get("video_camera") or config["run"]["showcase_camera"]  # up to 0.6
                self._cameras = tuple(sorted(self._scene_cameras(), key=lambda name: name != first))
        return self._cameras

    def image(self, camera: str, trace: Mapping[str, Array]) -> Array | None:
        if camera not in self.cameras or "sim_qpos" not in trace:
            return None
        try:
            if camera not in self._renderers:
                self._renderers[camera] = self._open(camera)
            started_s = time.perf_counter()
            image = next(self._renderers[camera].frames({name: value[None] for name, value in trace.items()}))
            self._use_smaller_images_if_slow(time.perf_counter() - started_s)
        except Exception:
            self._cameras = ()  # for example without GL: do not try again for each image
            raise
        return image

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _use_smaller_images_if_slow(self, seconds: float) -> None:
        self._slow = [*self._slow[1 - _NUM_TIMED :], seconds]
        is_slow = len(self._slow) == _NUM_TIMED and min(self._slow) > _SLOW_S
        if is_slow and self._size < len(_SIZES) - 1:
            self._size += 1
            self._slow = []
            self.close()

    def _scene_cameras(self) -> list[str]:
        model = self._world_robot().world.model
        return [str(model.camera(number).name) for number in range(model.ncam)]

    def _open(self, camera: str) -> EpisodeRenderer:
        from dovetail.robots.sim.episode_renderer import EpisodeRenderer

        width, height = _SIZES[self._size]
        return EpisodeRenderer(self._world_robot().world, camera=camera, width=width, height=height)

    def _world_robot(self) -> SimRobot:
        if self._robot is None:
            # imported here: real robots do not need MuJoCo
            from dovetail.robots.sim.robot import SimRobot

            config = self._config()
            task = PluginSection.parse("task", config["task"]).build() if config.get("task") else None
            robot = PluginSection.parse("robot", config["robot"]).build(task=task)
            if not isinstance(robot, SimRobot):
                raise DovetailError(f"robot '{config['robot']['type']}' is not a simulation")
            self._robot = robot
        return self._robot

    def _config(self) -> dict[str, Any]:
        """The resolved config as plain values: parsing its policy section would load torch."""
        config = saved_values(self._folder)
        own = ((config.get("cluster") or {}).get("robots") or {}).get(self._arm) or {}
        sections = {
            name: _merged(config.get(name) or {}, own[name]) for name in ("robot", "task") if own.get(name)
        }
        return {**config, **sections}


def _merged(section: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one robot replace the run's; another type replaces the whole section."""
    return {**section, **own} if own.get("type", section.get("type")) == section.get("type") else dict(own)
