"""Any robot together with cameras next to it.

robot = RobotWithCameras.around(driver, {"front": V4l2Camera(config, name="front")})
robot.observe().values["front"]          # uint8 [H, W, 3]
robot.observe().captured_ns["front"]     # for the safety filter, which finds cameras that stopped
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from dovetail.core.abilities import Closes, UsesBuffers
from dovetail.core.contracts import Camera, Robot, SimulatedRobot
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation

__all__ = ["RobotWithCameras"]


class RobotWithCameras:
    """Adds the images of cameras to a robot's observations. Build it with `around`.

    Cameras start at the first observation. A lost camera is a RobotError; the next observation starts it again.
    """

    def __init__(self, robot: Robot, cameras: Mapping[str, Camera]) -> None:
        self._robot = robot
        self._cameras = [_ShownCamera(name, camera) for name, camera in cameras.items()]
        self._spec = _with_images(robot.spec, cameras)

    @staticmethod
    def around(robot: Robot, cameras: Mapping[str, Camera]) -> Robot:
        """The robot with cameras. It has every ability of the robot; without cameras it is the robot itself."""
        return _class_for(robot)(robot, cameras) if cameras else robot

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        self._start_cameras()  # first: it may take seconds, and the robot's observation must be new
        seen = self._robot.observe()
        values, captured_ns = dict(seen.values), dict(seen.captured_ns)
        for camera in self._cameras:
            camera.update(self._robot_time_ns)
            values.update(camera.images)
            captured_ns.update(dict.fromkeys(camera.images, camera.captured_ns))
        return replace(seen, values=values, captured_ns=captured_ns)

    def send(self, action: Array) -> Array:
        return self._robot.send(action)

    def stop(self) -> None:
        self._robot.stop()

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        if isinstance(self._robot, UsesBuffers):
            self._robot.use_buffers(next_buffer)
        for camera in self._cameras:
            camera.next_buffer = next_buffer

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        if isinstance(self._robot, Closes):
            self._robot.close()

    def _robot_time_ns(self, captured_ns: int) -> int:
        """A capture time by the clock of the robot: the same clock."""
        return captured_ns

    def _start_cameras(self) -> None:
        waiting = [camera for camera in self._cameras if not camera.is_started]
        if len(waiting) == 1:
            waiting[0].start()
        elif waiting:
            _start_together(waiting)


class _SimulatedWithCameras(RobotWithCameras):
    """A simulated robot in real time. Its clock starts at 0 and counts what `advance` adds."""

    def __init__(self, robot: SimulatedRobot, cameras: Mapping[str, Camera]) -> None:
        super().__init__(robot, cameras)
        self._simulated, self._now_ns = robot, 0

    def advance(self, duration_ns: int) -> None:
        self._now_ns += duration_ns
        self._simulated.advance(duration_ns)

    def _robot_time_ns(self, captured_ns: int) -> int:
        return self._now_ns - (time.monotonic_ns() - captured_ns)


class _ShownCamera:
    """A camera, and the frame that observations show."""

    def __init__(self, name: str, camera: Camera) -> None:
        self.name, self._camera = name, camera
        self.is_started = False
        self.images: dict[str, Array] = {}
        self.captured_ns = 0  # of the images, by the robot's clock
        self.next_buffer: Callable[[str], Array] = self._new_array
        self._shown_ns: int | None = None  # of the images, by the camera's clock

    def start(self) -> None:
        self._call(self._camera.start)
        self.is_started, self._shown_ns = True, None

    def update(self, robot_time_ns: Callable[[int], int]) -> None:
        """Take the newest frame, if it is not shown yet: one copy, into the next buffer."""
        if self._call(self._camera.newest_ns) == self._shown_ns:
            return
        images = {key: self.next_buffer(key) for key in self._camera.spec}
        self._shown_ns = self._call(lambda: self._camera.read(images))
        self.captured_ns, self.images = robot_time_ns(self._shown_ns), images

    def close(self) -> None:
        self.is_started = False
        self._camera.close()

    def _call(self, method: Callable[[], Any]) -> Any:
        """Every error names the camera and makes it start again at the next observation."""
        try:
            return method()
        except RobotError as error:
            self.is_started = False
            if f"'{self.name}'" in str(error):
                raise
            raise RobotError(f"camera '{self.name}': {error}") from error
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            self.is_started = False
            raise RobotError(f"camera '{self.name}' failed: {error!r}") from error

    def _new_array(self, key: str) -> Array:
        spec = self._camera.spec[key]
        return np.empty(spec.shape, spec.dtype)


def _start_together(cameras: Sequence[_ShownCamera]) -> None:
    """Start cameras at the same time, because each may take seconds. Raises the first error."""
    with ThreadPoolExecutor(len(cameras), thread_name_prefix="start camera") as pool:
        for done in [pool.submit(camera.start) for camera in cameras]:
            done.result()


def _with_images(spec: RobotSpec, cameras: Mapping[str, Camera]) -> RobotSpec:
    observation: dict[str, ArraySpec] = dict(spec.observation)
    for name, camera in cameras.items():
        for key, image in camera.spec.items():
            if key != name and not key.startswith(f"{name}_"):
                raise UsageError(
                    f"camera '{name}' has an image '{key}'. Its name should be '{name}' or start with '{name}_'"
                )
            if key in observation:
                raise UsageError(
                    f"camera '{name}' and robot '{spec.name}' both have an observation '{key}': rename the camera"
                )
            observation[key] = image
    return replace(spec, observation=observation)


def _class_for(robot: Robot) -> type[RobotWithCameras]:
    """A class with every public attribute of the robot, so that tests for its abilities give the same answers."""
    base = _SimulatedWithCameras if isinstance(robot, SimulatedRobot) else RobotWithCameras
    names = {name for name in (*dir(type(robot)), *vars(robot)) if not name.startswith("_")} - set(dir(base))
    return type("RobotWithCameras", (base,), {name: _forwarded(name) for name in sorted(names)})


def _forwarded(name: str) -> Any:
    get = operator.attrgetter(name)
    return property(lambda self: get(self._robot))
