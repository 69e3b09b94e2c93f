"""A LeRobot camera next to any robot. A thread receives its frames from the bridge and keeps the newest one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from dovetail.core.errors import RobotError, one_line, shown
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.drivers.lerobot._client import BridgeLink, BridgeProcess, is_time
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message
from dovetail.robots.drivers.lerobot.settings import BridgeConfig

__all__ = ["LeRobotCamera", "LeRobotCameraConfig"]

_Side = Annotated[int, Field(ge=1, le=8192)]
_JOIN_S = 2.0
_WAIT_S = 0.4  # for one frame: the thread looks so often whether it should end


class LeRobotCameraConfig(BridgeConfig):
    """A LeRobot camera."""

    camera: str = Field(min_length=1)
    """LeRobot's type name, such as opencv or intelrealsense, or that of an installed plugin."""
    size: tuple[_Side, _Side] = (640, 480)
    """Width and height of the images, after LeRobot's rotation."""
    fps: int = Field(default=30, ge=1)
    """Frames per second that the device should give."""
    depth: bool = False
    """Also give the depth, as an image NAME_depth. Needs LeRobot 0.6 and use_depth in `config`."""


class LeRobotCamera:
    """A LeRobot camera, in a process with LeRobot's own interpreter."""

    Config: ClassVar[type[LeRobotCameraConfig]] = LeRobotCameraConfig

    def __init__(self, config: LeRobotCameraConfig, *, name: str) -> None:
        self._config, self.name = config, name
        width, height = config.size
        self._spec = {name: ArraySpec(shape=(height, width, 3), dtype="uint8")}
        if config.depth:
            self._spec[f"{name}_depth"] = ArraySpec(shape=(height, width, 1), dtype="uint16")
        settings = config.bridge_settings("camera", config.camera, release=True)
        settings["config"] = {"fps": config.fps, "width": width, "height": height, **config.config}
        self._process = BridgeProcess(config, settings)
        self._session: _Session | None = None

    @property
    def spec(self) -> Mapping[str, ArraySpec]:
        return self._spec

    def start(self) -> None:
        if self._session is not None and self._session.problem is None:
            return
        self.close()
        try:
            link = self._process.connect("control", start=True)
            try:
                link.request(Message("open"), timeout_s=self._config.start_timeout_s)
                link.request(Message("connect"), timeout_s=self._config.start_timeout_s)
            except BaseException:
                link.close()
                raise
        except RobotError as error:
            raise RobotError(f"camera '{self.name}': {error}") from error
        session = self._session = _Session(link, self._spec, name=self.name, timeout_s=self._config.timeout_s)
        session.thread.start()
        limit_s = _WAIT_S + self._config.timeout_s + _JOIN_S
        if not session.changed.wait(limit_s) or session.newest is None:
            self.close()
            raise RobotError(f"camera '{self.name}': {session.problem or f'no frame within {limit_s:g} s'}")

    def newest_ns(self) -> int:
        return self._newest()[0]

    def read(self, into: Mapping[str, Array]) -> int:
        time_ns, images = self._newest()
        for key, target in into.items():
            target[...] = images[key]
        return time_ns

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stopping.set()
            session.thread.join(_JOIN_S)

    def _newest(self) -> tuple[int, Mapping[str, Array]]:
        session = self._session
        if session is None or session.newest is None:
            raise RobotError(f"camera '{self.name}' is not started")
        if session.problem is not None:
            raise RobotError(f"camera '{self.name}' is lost: {session.problem}")
        return session.newest


class _Session:
    """From one start to the next. Its thread owns the connection."""

    def __init__(self, link: BridgeLink, spec: Mapping[str, ArraySpec], *, name: str, timeout_s: float) -> None:
        self._link, self._spec, self._name, self._timeout_s = link, spec, name, timeout_s
        self.newest: tuple[int, Mapping[str, Array]] | None = None
        self.problem: str | None = None
        self.stopping, self.changed = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"camera {name}", daemon=True)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._receive()
                self.changed.set()
        except Exception as error:  # the border of the thread: the control loop reports it
            self.problem = one_line(error) if not isinstance(error, RobotError) else str(error)
        finally:
            self._link.close()
            self.changed.set()

    def _receive(self) -> None:
        request = Message("read", {"timeout_s": _WAIT_S, "depth": len(self._spec) > 1})
        answer = self._link.request(request, timeout_s=_WAIT_S + self._timeout_s)
        if "captured_ns" not in answer.fields:
            return  # no new frame: the newest one grows old, and the safety filter stops the robot
        time_ns = answer.fields["captured_ns"]
        if not is_time(time_ns) or time_ns > time.monotonic_ns():
            raise RobotError(f"its capture time {shown(time_ns, max_chars=40)} is wrong")
        images = {}
        for key, spec in self._spec.items():
            image = answer.arrays.get("frame" if key == self._name else "depth")
            if image is None or image.shape != spec.shape or image.dtype != spec.dtype:
                got = "nothing" if image is None else f"{image.dtype}{list(image.shape)}"
                raise RobotError(f"its image '{key}' is {got} instead of {spec.describe()}: check `size`")
            images[key] = image
        if self.newest is None or time_ns > self.newest[0]:
            self.newest = time_ns, images
