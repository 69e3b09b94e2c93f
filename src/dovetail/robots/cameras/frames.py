"""A thread that receives a camera's frames and keeps the newest one. Base class of the cameras in this folder.

class MyCamera(ThreadedCamera):
    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        with open_device() as device:                            # runs on the camera's thread
            while not stopping.is_set():
                picture = device.wait_for_picture(timeout_s=0.5)
                yield Frame(time_ns=time.monotonic_ns(), images={self.name: picture})
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.core.errors import RobotError, one_line
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

__all__ = ["Frame", "FrameStatistics", "ThreadedCamera"]

_JOIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The images of one moment. Their arrays do not change any more."""

    time_ns: int
    images: Mapping[str, Array]


class FrameStatistics(NamedTuple):
    """What a camera has received since its start."""

    num_frames: int
    num_bad_frames: int  # that could not be decoded


class ThreadedCamera:
    """See the Camera contract. A subclass gives `_frames`; an exception there, or its end, is a lost camera."""

    def __init__(self, *, name: str, spec: Mapping[str, ArraySpec], timeout_s: float) -> None:
        self.name = name
        self._spec = dict(spec)
        self._timeout_s = timeout_s
        self._session: _Session | None = None

    @property
    def spec(self) -> Mapping[str, ArraySpec]:
        return self._spec

    @property
    def statistics(self) -> FrameStatistics:
        session = self._session
        return FrameStatistics(session.num_frames, session.num_bad_frames) if session else FrameStatistics(0, 0)

    def start(self) -> None:
        if self._session is not None and self._session.problem is None:
            return
        self.close()
        self._session = session = _Session(self)
        session.thread.start()
        # twice the time: opening the device and its first frame may each take `timeout_s`
        if not session.changed.wait(2.0 * self._timeout_s) or session.newest is None:
            problem = (
                session.problem or f"no frame within {2.0 * self._timeout_s:g} s. Check the device and its cable"
            )
            self.close()
            raise RobotError(f"camera '{self.name}': {problem}")

    def newest_ns(self) -> int:
        return self._newest().time_ns

    def read(self, into: Mapping[str, Array]) -> int:
        frame = self._newest()
        for key, target in into.items():
            target[...] = frame.images[key]
        return frame.time_ns

    def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.stopping.set()
        if session.thread.ident is not None and session.thread is not threading.current_thread():
            session.thread.join(
                _JOIN_S
            )  # a device that hangs keeps its daemon thread, which writes nowhere any more

    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        """Yield frames until `stopping` is set. Look at it at least twice per second."""
        raise NotImplementedError

    def _count_bad_frame(self) -> None:
        """Call it on the camera's thread for a frame that is left out."""
        if self._session is not None:
            self._session.num_bad_frames += 1

    def _newest(self) -> Frame:
        session = self._session
        if session is None or session.newest is None:
            raise RobotError(f"camera '{self.name}' is not started")
        if session.problem is not None:
            raise RobotError(f"camera '{self.name}' is lost: {session.problem}")
        return session.newest


class _Session:
    """From one start to the next. A thread that was given up can only write to its own session."""

    def __init__(self, camera: ThreadedCamera) -> None:
        self._camera = camera
        self.newest: Frame | None = None
        self.problem: str | None = None
        self.num_frames = self.num_bad_frames = 0
        self.stopping, self.changed = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"camera {camera.name}", daemon=True)

    def _run(self) -> None:
        try:
            for frame in self._camera._frames(self.stopping):
                self._check(frame)
                self.newest = frame
                self.num_frames += 1
                self.changed.set()
                if self.stopping.is_set():
                    break
            else:
                self.problem = "it gives no more frames"
        except Exception as error:  # the border of the thread: the control loop reports it
            self.problem = one_line(error)
        finally:
            self.changed.set()

    def _check(self, frame: Frame) -> None:
        for key, spec in self._camera.spec.items():
            image = frame.images[key]
            if image.shape != spec.shape or image.dtype != spec.dtype:
                raise RobotError(
                    f"its image '{key}' is {image.dtype}{list(image.shape)} instead of {spec.describe()}: check `size`"
                )
