"""Offscreen images from a world's cameras, and each of these as a `Camera`.

cameras = Cameras(world=world, names=("front", "wrist"), width=128, height=128)
camera = SimCamera(cameras, world=world, name="front")
camera.start()
time_ns = camera.read({"front": image})      # renders the present of the world
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import ConfigError, RobotError, did_you_mean
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.sim import _gl
from dovetail.robots.sim.world import World

__all__ = ["Cameras", "HasModel", "SimCamera"]

_OFF = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_HAZE)


class HasModel(Protocol):
    """What is rendered: a world, or an arm of capsules."""

    model: Any
    data: Any


class Cameras:
    """Cameras of one world, with the same image size. The first `render` creates the GL context.

    Shadows and multisampling are off, because they make software rendering eight times slower.
    """

    def __init__(self, *, world: HasModel, names: Sequence[str], width: int, height: int) -> None:
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

    def open(self) -> None:
        """Create the GL context now."""
        if self._renderer is None:
            self._open()

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


class SimCamera:
    """One camera of a simulated world. See the Camera contract, with two differences that follow from simulated time: the
    clock is that of the world, and `read` renders on the caller's thread, because the world stands still meanwhile."""

    def __init__(self, cameras: Cameras, *, world: World, name: str) -> None:
        """`cameras` renders for all cameras of the world."""
        self.name = name
        self._cameras, self._world = cameras, world
        self._spec = {name: ArraySpec(shape=(cameras.height, cameras.width, 3), dtype="uint8")}
        self._is_started = False

    @property
    def spec(self) -> Mapping[str, ArraySpec]:
        return self._spec

    def start(self) -> None:
        self._cameras.open()
        self._is_started = True

    def newest_ns(self) -> int:
        """The present: each moment of the world is a frame."""
        if not self._is_started:
            raise RobotError(f"camera '{self.name}' is not started")
        return self._world.time_ns

    def read(self, into: Mapping[str, Array]) -> int:
        time_ns = self.newest_ns()
        self._cameras.render(self.name, into[self.name])
        return time_ns

    def close(self) -> None:
        self._is_started = False
        self._cameras.close()
