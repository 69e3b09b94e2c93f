"""The frames of a run's episodes: recorded images, or images rendered from the simulator's trace."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from dovetail.core.abilities import HasWorld
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.runs.assembly.arms import config_of
from dovetail.runs.folder import RunFolder

if TYPE_CHECKING:
    from dovetail.robots.sim.episode_renderer import EpisodeRenderer

__all__ = ["RunRenderer", "episode_frames", "video_camera"]


def video_camera(folder: RunFolder, info: EpisodeInfo) -> str:
    """The camera of a run's videos: `run.video_camera` or, if a robot that is not simulated lacks it, the first recorded."""
    wanted = folder.config.run.video_camera
    if wanted in info.cameras or not info.cameras or folder.config.robot.type == "sim":
        return wanted
    return info.cameras[0]


def episode_frames(
    folder: RunFolder, episode_id: str, *, camera: str = "front", size: tuple[int, int] = (480, 480)
) -> Iterator[Array]:
    """uint8 [H, W, 3] per step of one episode. `size` (width, height) applies to rendered images only."""
    renderer = RunRenderer(folder, camera=camera, size=size)
    return _closing(renderer, renderer.frames(episode_id))


def _closing(renderer: RunRenderer, frames: Iterator[Array]) -> Iterator[Array]:
    with renderer:
        yield from frames


class RunRenderer:
    """Renders any number of episodes with one simulation and one GL context per arm, created when first needed.

    with RunRenderer(folder, camera="front", size=(480, 480)) as renderer:
        write_video(path, renderer.frames(episode_id), fps=10)
    """

    def __init__(self, folder: RunFolder, *, camera: str = "front", size: tuple[int, int] = (480, 480)) -> None:
        self._folder = folder
        self._log = EpisodeLog(folder.episodes)
        self._camera = camera
        self._size = size
        self._renderers: dict[str, tuple[EpisodeRenderer, str]] = {}  # arm -> renderer, name of its task

    def frames(self, episode_id: str, *, every: int = 1) -> Iterator[Array]:
        """One frame per step and, if recorded, one of the last observation. Raises at once if there are none.

        With `every` n, each n-th frame, counted from the last.
        """
        info = self._log.manifest(episode_id)
        spec = info.robot.observation.get(self._camera)
        if self._camera in info.cameras and (spec is None or spec.is_image):
            frames = self._log.frames(episode_id, self._camera)
            chosen = set(_thinned(info.num_steps + 1, every).tolist())
            return (frame for row, frame in enumerate(frames) if row in chosen)
        episode = self._log.load(episode_id, images=False)
        names = [name for name in episode.segments[0].columns if name.startswith("extra/sim_")]
        if not names:
            others = f" (it has {', '.join(info.cameras)})" if info.cameras else ""
            is_gym = self._folder.config.robot.type == "gym"
            setting = f"robot.render_key={self._camera}" if is_gym else f"robot.images=[{self._camera}]"
            raise UsageError(
                f"episode {episode_id} has no images of camera '{self._camera}'{others} and no simulator trace to "
                f"render: record images with {setting}"
            )
        renderer = self._open(episode)
        rows = _thinned(len(episode), every)
        return renderer.frames({name.removeprefix("extra/"): episode.column(name)[rows] for name in names})

    def close(self) -> None:
        while self._renderers:
            self._renderers.popitem()[1][0].close()

    def __enter__(self) -> RunRenderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, episode: Episode) -> EpisodeRenderer:
        """The renderer of the episode's arm, with the scene built as in the run."""
        # imported here: recorded images need neither MuJoCo nor GL
        from dovetail.robots.sim.episode_renderer import EpisodeRenderer

        name = episode.robot.name if episode.robot.name in self._folder.config.cluster.robots else ""
        if name not in self._renderers:
            config = config_of(self._folder.config, name)
            task = config.task.build() if config.task else None
            robot = config.robot.build(task=task)
            if task is None or not isinstance(robot, HasWorld):
                raise UsageError(
                    f"episode {episode.id} was simulated, but run {self._folder.path} has robot "
                    f"'{config.robot.type}': render it in the run that recorded it"
                )
            width, height = self._size
            renderer = EpisodeRenderer(robot.world, camera=self._camera, width=width, height=height)
            self._renderers[name] = (renderer, task.spec.name)
        renderer, task_name = self._renderers[name]
        if episode.task != task_name:
            raise UsageError(
                f"episode {episode.id} is of task '{episode.task}', but run {self._folder.path} is of task "
                f"'{task_name}': render it in the run that recorded it"
            )
        return renderer


def _thinned(num_frames: int, every: int) -> Array:
    """Rows to show: each n-th, counted back from the last, which is always included."""
    return np.arange(num_frames - 1, -1, -every)[::-1]
