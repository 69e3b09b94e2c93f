"""Renders an episode afterwards, from the states that `SimRobot.probe` recorded, with any camera and image size.

    renderer = EpisodeRenderer(SimRobot(config, task=task).world, camera="front", width=480, height=480)
    for image in renderer.frames({"sim_qpos": qpos, "sim_fixtures": fixtures}):  # [T, nq], [T, k, 7]
        ...

It does not simulate again.
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

__all__ = ["TRACE_KEYS", "EpisodeRenderer"]

TRACE_KEYS = ("sim_qpos", "sim_fixtures")


class EpisodeRenderer:
    """One camera in a separate world. Rendering changes the world's state, so do not share the world.

    Several `frames` iterators may be interleaved, because each image sets the whole state.
    """

    def __init__(self, world: World, *, camera: str = "front", width: int, height: int) -> None:
        self._world = world
        self._camera = camera
        self._cameras = Cameras(world=world, names=(camera,), width=width, height=height)

    def frames(self, columns: Mapping[str, Array]) -> Iterator[NDArray[np.uint8]]:
        """Yield one image [H, W, 3] per step. Raises UsageError if the columns do not fit this world."""
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
        return (self._render(*state) for state in zip(qpos, fixtures, strict=True))

    def _render(self, qpos: Array, fixtures: Array) -> NDArray[np.uint8]:
        world = self._world
        model, data = world.model, world.data
        data.qpos[:] = qpos
        model.body_pos[world.fixtures] = fixtures[:, :3]
        model.body_quat[world.fixtures] = fixtures[:, 3:]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)  # cameras and lights may follow a center of mass
        return self._cameras.render(self._camera)

    def close(self) -> None:
        self._cameras.close()

    def __enter__(self) -> EpisodeRenderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
