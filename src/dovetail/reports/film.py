"""Episodes of a run as pictures: those that were recorded, or else filmed now from the simulator's trace."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.assembly.arms import config_of
from dovetail.runs.folder import RunFolder

if TYPE_CHECKING:
    from dovetail.robots.sim.film import Film

__all__ = ["Filmer", "episode_frames"]


def episode_frames(
    folder: RunFolder, episode_id: str, *, camera: str = "front", size: tuple[int, int] = (480, 480)
) -> Iterator[Array]:
    """uint8 [H, W, 3] per step of one episode. `size` (width, height) is for filming; what was recorded is as it is."""
    filmer = Filmer(folder, camera=camera, size=size)
    return _closing(filmer, filmer.frames(episode_id))


def _closing(filmer: Filmer, frames: Iterator[Array]) -> Iterator[Array]:
    with filmer:
        yield from frames


class Filmer:
    """Makes the frames of any number of episodes with one world and one GL context of each arm, made when first needed.

    with Filmer(folder, camera="front", size=(480, 480)) as filmer:
        write_video(path, filmer.frames(episode_id), fps=10)
    """

    def __init__(self, folder: RunFolder, *, camera: str = "front", size: tuple[int, int] = (480, 480)) -> None:
        self._folder = folder
        self._log = EpisodeLog(folder.episodes)
        self._camera = camera
        self._size = size
        self._films: dict[str, tuple[Film, str]] = {}  # and its task, by the arm where there are several

    def frames(self, episode_id: str, *, every: int = 1) -> Iterator[Array]:
        """One frame per step, and the last observation's if it was recorded; what cannot be shown is refused at once.

        With `every` n, each n-th, counted from the last.
        """
        info = self._log.manifest(episode_id)
        spec = info.robot.observation.get(self._camera)
        if self._camera in info.cameras and (spec is None or spec.is_image):
            frames = self._log.frames(episode_id, self._camera)
            wanted = set(_thinned(info.num_steps + 1, every).tolist())
            return (frame for row, frame in enumerate(frames) if row in wanted)
        episode = self._log.load(episode_id, images=False)
        names = [name for name in episode.segments[0].columns if name.startswith("extra/sim_")]
        if not names:
            seen = f" (it has {', '.join(info.cameras)})" if info.cameras else ""
            raise UsageError(
                f"episode {episode_id} has no images of camera '{self._camera}'{seen} and no simulator's trace to "
                f"film: record them with robot.images=[{self._camera}], or use robot: sim"
            )
        film = self._open(episode)
        rows = _thinned(len(episode), every)
        return film.frames({name.removeprefix("extra/"): episode.column(name)[rows] for name in names})

    def close(self) -> None:
        while self._films:
            self._films.popitem()[1][0].close()

    def __enter__(self) -> Filmer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, episode: Episode) -> Film:
        """The camera before the run's scene, built as the run built it."""
        # imported here: recorded images can be shown without MuJoCo, and where it finds no GL to load
        from dovetail.robots.sim.film import Film
        from dovetail.robots.sim.robot import SimRobot

        name = episode.robot.name if episode.robot.name in self._folder.config.cluster.robots else ""
        if name not in self._films:
            config = config_of(self._folder.config, name)
            task = config.task.build() if config.task else None
            robot = config.robot.build(task=task)
            if task is None or not isinstance(robot, SimRobot):
                raise UsageError(
                    f"episode {episode.id} was simulated, but run {self._folder.path} has robot "
                    f"'{config.robot.type}': film it in the run it comes from"
                )
            width, height = self._size
            film = Film(robot.world, camera=self._camera, width=width, height=height)
            self._films[name] = (film, task.spec.name)
        film, task_name = self._films[name]
        if episode.task != task_name:
            raise UsageError(
                f"episode {episode.id} is of task '{episode.task}', but run {self._folder.path} is of task "
                f"'{task_name}': film it in the run it comes from"
            )
        return film


def _thinned(num_frames: int, every: int) -> Array:
    """Rows to show: each n-th, and the last one, which shows how it ended, in any case."""
    return np.arange(num_frames - 1, -1, -every)[::-1]
