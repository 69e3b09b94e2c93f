"""Pictures of an episode, taken after it: from what `SimRobot.probe` recorded, by any camera, at any size.

    film = Film(SimRobot(config, task=task).world, camera="front", width=480, height=480)
    for picture in film.frames({"sim_qpos": qpos, "sim_fixtures": fixtures}):  # [T, nq], [T, k, 7]
        ...

Nothing is simulated again: each picture is the recorded state, drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType

import mujoco
import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.robots.sim.cameras import Cameras
from dovetail.robots.sim.world import World

__all__ = ["TRACE_KEYS", "Film"]

TRACE_KEYS = ("sim_qpos", "sim_fixtures")


class Film:
    """A camera before a world of its own: filming writes the world's state, so nobody else may use it.

    Several `frames` may run at once, turn by turn: each picture sets the whole state before it is taken.
    """

    def __init__(self, world: World, *, camera: str = "front", width: int, height: int) -> None:
        self._world = world
        self._camera = camera
        self._cameras = Cameras(world=world, names=(camera,), width=width, height=height)

    def frames(self, columns: Mapping[str, Array]) -> Iterator[NDArray[np.uint8]]:
        """One [H, W, 3] per recorded step. Columns that are not this world's are refused at once."""
        missing = [key for key in TRACE_KEYS if key not in columns]
        if missing:
            raise UsageError(f"the trace has no {' and no '.join(missing)}: it was not recorded by a sim robot")
        qpos, fixtures = (np.asarray(columns[key], np.float64) for key in TRACE_KEYS)
        world = self._world
        here = ((world.model.nq,), (len(world.fixtures), 7))
        if (qpos.shape[1:], fixtures.shape[1:]) != here or len(qpos) != len(fixtures):
            raise UsageError(
                f"the trace is of another scene: it has sim_qpos {list(qpos.shape)} and sim_fixtures "
                f"{list(fixtures.shape)}, but this world has {world.model.nq} joint positions and "
                f"{len(world.fixtures)} fixtures"
            )
        return (self._picture(*state) for state in zip(qpos, fixtures, strict=True))

    def _picture(self, qpos: Array, fixtures: Array) -> NDArray[np.uint8]:
        world = self._world
        model, data = world.model, world.data
        data.qpos[:] = qpos
        model.body_pos[world.fixtures] = fixtures[:, :3]
        model.body_quat[world.fixtures] = fixtures[:, 3:]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)  # cameras and lights may follow a centre of mass
        return self._cameras.render(self._camera)

    def close(self) -> None:
        self._cameras.close()

    def __enter__(self) -> Film:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
