"""Frames from anything that FFmpeg reads: a V4L2 device, a video file, a stream. One capture class for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import RobotError, one_line
from dovetail.robots.cameras.frames import Frame, ThreadedCamera
from dovetail.robots.cameras.pictures import (
    DECODER_OPTIONS,
    MAX_PIXELS,
    PictureConfig,
    PictureConverter,
    image_spec,
)
from dovetail.robots.cameras.timing import KernelTimes, StreamTimes

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer

__all__ = ["Capture", "VideoSource"]

_MAX_BAD_FRAMES = 30  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSource:
    """What FFmpeg opens, and how."""

    url: str
    label: str  # for errors: without a password
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    captured_size: tuple[int, int] | None = None  # (width, height) that it must have; None: any
    times: Callable[[], KernelTimes | StreamTimes] | None = None  # None: the time of arrival counts
    paced: bool = False  # a file: give each frame at its time
    loops: bool = False  # a file: start again at its end


class Capture(ThreadedCamera):
    """A camera that FFmpeg reads. Frames that cannot be decoded are left out; many in a row are a lost camera."""

    def __init__(self, config: PictureConfig, source: VideoSource, *, name: str) -> None:
        # twice the time: opening the device and its first frame may each take `timeout_s`
        super().__init__(name=name, spec={name: image_spec(config)}, start_timeout_s=2.0 * config.timeout_s)
        self._picture_config, self._source = config, source

    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        source = self._source
        converter = PictureConverter(self._picture_config, captured_size=source.captured_size)
        while not stopping.is_set():
            with self._open() as container:
                for picture, time_ns in self._pictures(container, stopping):
                    image = converter.convert(picture)
                    yield Frame(time_ns=time_ns, images={self.name: image})
            if not source.loops:
                raise RobotError(f"{source.label} has ended")

    def _open(self) -> InputContainer:
        import av

        source, timeout_s = self._source, self._picture_config.timeout_s
        try:
            return av.open(
                source.url,
                format=source.format,
                options=dict(source.options),
                timeout=(timeout_s, timeout_s),
            )
        except (OSError, ValueError, av.FFmpegError) as error:
            raise RobotError(f"cannot open {source.label}: {_reason(error, source)}") from error

    def _pictures(self, container: InputContainer, stopping: threading.Event) -> Iterator[tuple[VideoFrame, int]]:
        """Decoded pictures with their capture times."""
        import av

        if not container.streams.video:
            raise RobotError(f"{self._source.label} has no video")
        stream = container.streams.video[0]
        codec = stream.codec_context
        codec.thread_count = 1  # more threads would give each frame later
        codec.options = dict(DECODER_OPTIONS)
        if (codec.width or 0) * (codec.height or 0) > MAX_PIXELS:
            raise RobotError(
                f"{self._source.label} has pictures of {codec.width}x{codec.height}, more than the {MAX_PIXELS} pixels "
                "that are allowed. Set a smaller size at its source"
            )
        times = self._source.times() if self._source.times is not None else None
        pace = _Pace(stopping) if self._source.paced else None
        num_bad = 0
        try:
            for packet in container.demux(stream):
                if stopping.is_set():
                    return
                arrived_ns = time.monotonic_ns()
                stamp_ns = _stamp_ns(packet)
                if pace is not None and not pace.wait(stamp_ns):
                    return
                time_ns = time.monotonic_ns() if pace is not None else arrived_ns
                if times is not None and stamp_ns is not None:
                    time_ns = times.capture_ns(stamp_ns, arrived_ns=arrived_ns)
                try:
                    pictures = codec.decode(packet)
                except av.FFmpegError as error:
                    num_bad += 1
                    self._count_bad_frame()
                    if num_bad >= _MAX_BAD_FRAMES:
                        raise RobotError(
                            f"{num_bad} frames in a row cannot be decoded ({one_line(error)})"
                        ) from error
                    continue
                for picture in pictures[-1:]:
                    num_bad = 0
                    yield picture, time_ns
            if pace is not None:
                pace.wait_for_end()
        except av.FFmpegError as error:
            raise RobotError(f"{self._source.label} does not answer: {_reason(error, self._source)}") from error


class _Pace:
    """Gives the frames of a file at the times of the file."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._offset_ns: int | None = None  # of our clock, from the file's
        self._last_ns = self._interval_ns = 0

    def wait(self, stamp_ns: int | None) -> bool:
        """Wait until the frame is due. False: the camera is closing."""
        if stamp_ns is None:
            return True
        if self._offset_ns is None:
            self._offset_ns, self._last_ns = time.monotonic_ns() - stamp_ns, stamp_ns
        self._last_ns, self._interval_ns = stamp_ns, stamp_ns - self._last_ns
        left_s = (self._offset_ns + stamp_ns - time.monotonic_ns()) / NS_PER_S
        return not self._stopping.wait(left_s) if left_s > 0 else True

    def wait_for_end(self) -> None:
        """Show the last frame as long as the one before it."""
        self.wait(self._last_ns + self._interval_ns)


def _stamp_ns(packet: Packet[Any]) -> int | None:
    """The time stamp of a packet in its stream."""
    stamp, base = packet.pts if packet.pts is not None else packet.dts, packet.time_base
    return None if stamp is None or base is None else int(stamp * base * NS_PER_S)


def _reason(error: Any, source: VideoSource) -> str:
    """The system's words. FFmpeg appends the URL, which may contain a password."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(str(text).replace(source.url, source.label).split())
