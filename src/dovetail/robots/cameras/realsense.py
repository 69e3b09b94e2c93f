"""Intel RealSense cameras of the D400 family through `pyrealsense2`: color and depth."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.cameras.frames import Frame, ThreadedCamera
from dovetail.robots.cameras.pictures import DevicePictureConfig, PictureConverter, image_spec, to_depth_image
from dovetail.robots.cameras.timing import StreamTimes

__all__ = ["RealsenseCamera", "RealsenseConfig"]

_POLL_S = 0.25
_RESET_S = 15.0  # until a camera is back after a reset
_NS_PER_MS = 1_000_000


class _NoFrame(RobotError):
    """The camera is open, but silent."""


class RealsenseConfig(DevicePictureConfig):
    """An Intel RealSense camera."""

    BASIC: ClassVar[Collection[str]] = ("serial", "depth")

    serial: str | None = None
    """Serial number of the camera (`rs-enumerate-devices -s`). Null: the only one that is connected."""
    depth: bool = False
    """Also give the depth, as an image NAME_depth."""
    depth_unit_m: float = Field(default=0.001, gt=0)
    """Meters per unit of depth. The camera is set to it. Smaller units for a D405: 0.0001."""
    align_depth: bool = True
    """Show the depth of each pixel of the color image. A D405 needs no alignment."""
    reset_at_start: bool | None = None
    """Reset the camera before use, which takes seconds. Null: only a D405 that gives no frames, as after an unclean end."""


class RealsenseCamera(ThreadedCamera):
    """An Intel RealSense camera: color, and depth if asked. The camera's own capture times, with an estimated offset."""

    Config: ClassVar[type[RealsenseConfig]] = RealsenseConfig
    packages: ClassVar[Mapping[str, str]] = {"pyrealsense2": "'dovetail[realsense]'"}

    def __init__(self, config: RealsenseConfig, *, name: str) -> None:
        color = image_spec(config)
        spec = {name: color}
        if config.depth:
            spec[f"{name}_depth"] = ArraySpec(shape=(*color.shape[:2], 1), dtype="uint16")
        reset_s = 0.0 if config.reset_at_start is False else _RESET_S + config.timeout_s
        super().__init__(name=name, spec=spec, start_timeout_s=2.0 * config.timeout_s + reset_s)
        self._config = config

    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        device = self._find_device()
        if self._config.reset_at_start:
            device = self._reset(device, stopping)
        may_need_reset = self._config.reset_at_start is None and "D405" in _info(device, "name")
        try:
            for frame in self._opened(device, stopping):
                may_need_reset = False
                yield frame
        except _NoFrame:
            if not may_need_reset:
                raise
            yield from self._opened(self._reset(self._find_device(), stopping), stopping)

    def _opened(self, device: Any, stopping: threading.Event) -> Iterator[Frame]:
        queue, opened = _library().frame_queue(4), []
        try:
            for sensor, profiles in self._chosen(device):
                self._set_depth_unit(sensor)
                sensor.open(profiles)
                opened.append(sensor)
                sensor.start(queue)
            yield from self._received(device, queue, stopping)
        except RuntimeError as error:  # the library's only exception
            raise RobotError(f"the RealSense library reports: {error}") from error
        finally:
            for sensor in opened:
                _stop(sensor)

    def _find_device(self) -> Any:
        devices = list(_library().context().query_devices())
        serials = [_info(device, "serial_number") for device in devices]
        wanted = self._config.serial
        if wanted is not None:
            if wanted not in serials:
                found = f"only {', '.join(serials)}" if serials else "no RealSense camera"
                raise RobotError(
                    f"RealSense {wanted} is not connected, {found}. Check the cable and the serial number"
                )
            return devices[serials.index(wanted)]
        if len(devices) != 1:
            found = f"{len(devices)} RealSense cameras are connected ({', '.join(serials)}): set `serial`"
            raise RobotError(found if devices else "no RealSense camera is connected. Check the cable")
        return devices[0]

    def _reset(self, device: Any, stopping: threading.Event) -> Any:
        """Reset the device and return it when it is back: it leaves the bus and gets a new handle."""
        device.hardware_reset()
        end_s = time.monotonic() + _RESET_S
        stopping.wait(2.0)  # until it has left the bus
        while True:
            try:
                return self._find_device()
            except RobotError:
                if stopping.wait(_POLL_S) or time.monotonic() > end_s:
                    raise

    def _chosen(self, device: Any) -> list[tuple[Any, list[Any]]]:
        """The sensors to open, each with its streams. A D405 has one sensor for both streams."""
        rs, config = _library(), self._config
        wanted = {rs.stream.color: rs.format.rgb8} | ({rs.stream.depth: rs.format.z16} if config.depth else {})
        chosen, missing = [], dict(wanted)
        for sensor in device.query_sensors():
            profiles = [
                profile
                for stream in list(missing)
                if (profile := _profile(sensor, stream, missing[stream], config)) is not None
            ]
            for profile in profiles:
                del missing[profile.stream_type()]
            if profiles:
                chosen.append((sensor, profiles))
        if missing:
            width, height = config.captured_size
            names = " and ".join(stream.name for stream in missing)
            raise RobotError(
                f"it has no {names} stream of {width}x{height} at {config.fps:g} fps. Set capture_size and fps to a mode "
                "that `rs-enumerate-devices` lists"
            )
        return chosen

    def _set_depth_unit(self, sensor: Any) -> None:
        option = _library().option.depth_units
        if not self._config.depth or not sensor.supports(option):
            return
        wanted, unit_m = self._config.depth_unit_m, float(sensor.get_option(option))
        if not np.isclose(unit_m, wanted, rtol=1e-4) and not sensor.is_option_read_only(option):
            sensor.set_option(option, wanted)
            unit_m = float(sensor.get_option(option))
        if not np.isclose(unit_m, wanted, rtol=1e-4):
            raise RobotError(f"its depth unit is {unit_m:g} m, not depth_unit_m {wanted:g}: change the setting")

    def _received(self, device: Any, queue: Any, stopping: threading.Event) -> Iterator[Frame]:
        rs, config = _library(), self._config
        aligner = _Aligner() if config.depth and config.align_depth else None
        converter, times = PictureConverter(config, captured_size=config.captured_size), StreamTimes()
        pair = _Pair(max_apart_ms=500.0 / config.fps if config.depth else None)
        last_s = time.monotonic()
        while not stopping.is_set():
            arrived, frame = queue.try_wait_for_frame(round(1e3 * _POLL_S))
            now_ns = time.monotonic_ns()
            if not (arrived and pair.add(frame, is_depth=frame.get_profile().stream_type() == rs.stream.depth)):
                if not device.is_connected():
                    raise RobotError("it was unplugged")
                if time.monotonic() - last_s > config.timeout_s:
                    raise _NoFrame(f"no frame for {config.timeout_s:g} s. Try reset_at_start: true")
                continue
            last_s = time.monotonic()
            time_ns = times.capture_ns(round(pair.color.get_timestamp() * _NS_PER_MS), arrived_ns=now_ns)
            images = {self.name: _to_color_image(pair.color, converter)}
            if config.depth:
                depth = aligner.align(pair.color, pair.depth) if aligner is not None else pair.depth
                # a copy: the library reuses the memory of its frames
                images[f"{self.name}_depth"] = to_depth_image(np.array(depth.as_video_frame().get_data()), config)
            yield Frame(time_ns=time_ns, images=images)


class _Pair:
    """The newest color frame and the depth frame of the same moment. The library's own syncer may give them apart."""

    def __init__(self, *, max_apart_ms: float | None) -> None:
        self._max_apart_ms = max_apart_ms  # None: color alone
        self.color: Any = None
        self.depth: Any = None

    def add(self, frame: Any, *, is_depth: bool) -> bool:
        """Whether the frame completes a new pair."""
        if is_depth:
            self.depth = frame
        else:
            self.color = frame
        if self._max_apart_ms is None:
            return not is_depth
        if self.color is None or self.depth is None:
            return False
        return bool(abs(self.color.get_timestamp() - self.depth.get_timestamp()) <= self._max_apart_ms)


class _Aligner:
    """Computes the depth of each color pixel."""

    def __init__(self) -> None:
        rs = _library()
        self._align, self._queue = rs.align(rs.stream.color), rs.frame_queue(1)
        self._frames: list[Any] = []
        self._block = rs.processing_block(self._join)
        self._block.start(self._queue)

    def align(self, color: Any, depth: Any) -> Any:
        self._frames = [color, depth]
        self._block.invoke(color)
        return self._align.process(self._queue.wait_for_frame(1000).as_frameset()).get_depth_frame()

    def _join(self, frame: Any, source: Any) -> None:
        source.frame_ready(source.allocate_composite_frame(self._frames))


def _to_color_image(color: Any, converter: PictureConverter) -> Array:
    import av

    # `from_ndarray` copies: the library reuses the memory of its frames
    return converter.convert(
        av.VideoFrame.from_ndarray(np.asarray(color.as_video_frame().get_data()), format="rgb24")
    )


def _profile(sensor: Any, stream: Any, format: Any, config: RealsenseConfig) -> Any:
    """The profile of a sensor with the configured size and rate. None: it has none."""
    for profile in sensor.get_stream_profiles():
        if profile.stream_type() != stream or profile.format() != format or profile.fps() != round(config.fps):
            continue
        video = profile.as_video_stream_profile()
        if (video.width(), video.height()) == config.captured_size:
            return profile
    return None


def _info(device: Any, name: str) -> str:
    info = getattr(_library().camera_info, name)
    return str(device.get_info(info)) if device.supports(info) else "?"


def _stop(sensor: Any) -> None:
    for end in (sensor.stop, sensor.close):
        try:
            end()
        except RuntimeError:  # it is gone, or was not started
            continue


def _library() -> Any:
    try:
        import pyrealsense2
    except ImportError as error:
        raise RobotError("needs pyrealsense2. Install it with: pip install 'dovetail[realsense]'") from error
    return pyrealsense2
