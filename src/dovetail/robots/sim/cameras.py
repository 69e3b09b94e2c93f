"""Offscreen images from a world's cameras."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import ConfigError, RobotError, did_you_mean
from dovetail.robots.sim import _gl
from dovetail.robots.sim.world import World

__all__ = ["Cameras"]

_OFF = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_HAZE)


class Cameras:
    """Cameras of one world, with the same image size. The first `render` creates the GL context.

    Shadows and multisampling are off, because they make software rendering eight times slower.
    """

    def __init__(self, *, world: World, names: Sequence[str], width: int, height: int) -> None:
        known = [str(world.model.camera(i).name) for i in range(world.model.ncam)]
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no camera '{name}' in this world.{did_you_mean(name, known)}")
        if width < 1 or height < 1:
            raise ConfigError(f"image size {width} x {height} is too small: both must be at least 1 pixel")
        self.names = tuple(names)
        self.width, self.height = width, height
        self._world = world
        self._renderer: Any = None
        self._finalizer: Any = None

    def render(self, name: str, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Image [H, W, 3] of the current state, in `out` or a new array."""
        renderer = self._renderer if self._renderer is not None else self._open()
        world = self._world
        mujoco.mj_camlight(world.model, world.data)  # a step leaves camera poses one substep old
        renderer.update_scene(world.data, camera=name)
        for flag in _OFF:  # update_scene switches them on again
            renderer.scene.flags[flag] = 0
        image: NDArray[np.uint8] = renderer.render(out=out)
        return image

    def close(self) -> None:
        """Release the GL context. A later `render` creates a new one."""
        if self._finalizer is not None:
            self._finalizer()
        self._renderer = self._finalizer = None

    def _open(self) -> Any:
        size = self._world.model.vis.global_
        size.offwidth, size.offheight = max(size.offwidth, self.width), max(size.offheight, self.height)
        try:
            renderer: Any = mujoco.Renderer(self._world.model, height=self.height, width=self.width)
        except Exception as error:  # depends on the GL backend
            reason = (_gl.MISSING or " ".join(str(error).split()) or type(error).__name__)[:200]
            raise RobotError(
                f"cannot render images ({reason}): install EGL (libegl1, libgl1-mesa-dri), set "
                "MUJOCO_GL=osmesa, or remove robot.images"
            ) from error
        self._renderer = renderer
        # at exit the renderer must close before the GL library is unloaded
        self._finalizer = weakref.finalize(self, renderer.close)
        return renderer
