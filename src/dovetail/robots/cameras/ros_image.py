"""Images of a ROS 2 topic: raw `sensor_msgs/Image` and `sensor_msgs/CompressedImage`, through DDS and without ROS."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import RobotError, one_line, shown
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.cameras.frames import Frame, ThreadedCamera
from dovetail.robots.cameras.pictures import (
    DECODER_OPTIONS,
    PictureConfig,
    PictureConverter,
    image_spec,
    to_depth_image,
)
from dovetail.robots.cameras.timing import StreamTimes
from dovetail.robots.drivers.ros2.settings import DdsConfig, QosConfig

if TYPE_CHECKING:
    from av import VideoFrame

    from dovetail.robots.drivers.ros2.dds import Subscription

__all__ = ["RosImageCamera", "RosImageConfig"]

_RAW, _COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_FORMATS = {"rgb8": ("rgb24", 3), "bgr8": ("bgr24", 3), "mono8": ("gray", 1)}  # for FFmpeg, and bytes per pixel
_DEPTH_ENCODINGS = ("16UC1", "mono16")
_CODECS = {b"\xff\xd8": "mjpeg", b"\x89P": "png"}  # by the first bytes of the data
_MAX_BAD_FRAMES = 30  # in a row
_MAX_SIDE = 8192
_WAIT_S = 0.2


class RosImageConfig(PictureConfig):
    """Images of a ROS 2 topic."""

    BASIC: ClassVar[Collection[str]] = ("topic", "compressed", "depth", "dds")

    topic: str = Field(pattern=r"^(/[A-Za-z_][A-Za-z0-9_]*)+$")
    """Name of the topic, such as `/camera/color/image_raw`."""
    compressed: bool = False
    """Whether its messages are CompressedImage (JPEG or PNG), not Image (rgb8, bgr8, mono8, 16UC1)."""
    depth: bool = False
    """Whether it is a depth image (16UC1, or PNG with 16 bits), in the unit of the topic, usually millimeters."""
    dds: DdsConfig = Field(default_factory=DdsConfig)
    """Domain and network: the same as those of the robot."""
    qos: QosConfig = Field(default_factory=lambda: QosConfig(reliability="best_effort", depth=2))
    """Quality of service. The default fits every publisher."""
    stamp: Literal["header", "arrival"] = "header"
    """Time of capture: from the header unless that is zero, or the time of arrival."""


class RosImageCamera(ThreadedCamera):
    """Images of a ROS 2 topic."""

    Config: ClassVar[type[RosImageConfig]] = RosImageConfig
    packages: ClassVar[Mapping[str, str]] = {"cyclonedds": "dovetail[ros2]", "rosbags": "dovetail[ros2]"}

    def __init__(self, config: RosImageConfig, *, name: str) -> None:
        width, height = config.size
        depth = ArraySpec(shape=(height, width, 1), dtype="uint16")
        spec = {f"{name}_depth": depth} if config.depth else {name: image_spec(config)}
        super().__init__(name=name, spec=spec, start_timeout_s=2 * config.timeout_s)
        self._config = config
        self._key = next(iter(spec))

    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        from dovetail.robots.drivers.ros2.dds import DdsNode
        from dovetail.robots.drivers.ros2.messages import Codec, MessageError

        config, codec = self._config, Codec()
        type_name = _COMPRESSED if config.compressed else _RAW
        images, times = _Images(config), StreamTimes()
        with DdsNode(config.dds, codec) as node:
            heard = node.subscribe(config.topic, type_name, config.qos)
            node.start()
            num_seen = num_bad = 0
            while not stopping.is_set():
                node.wait(lambda: _number(heard) != num_seen, timeout_s=_WAIT_S)  # noqa: B023  asked at once
                sample = heard.newest
                if sample is None or sample.number == num_seen:
                    self._check_publisher(heard, has_seen=num_seen > 0)
                    continue
                num_seen = sample.number
                try:
                    message = codec.decode(sample.payload, type_name)
                    image = images.image(message)
                except (MessageError, _BadFrame) as error:
                    num_bad += 1
                    self._count_bad_frame()
                    if num_bad >= _MAX_BAD_FRAMES:
                        raise RobotError(
                            f"{num_bad} frames in a row cannot be decoded ({one_line(error)})"
                        ) from error
                    continue
                num_bad = 0
                stamp = message.header.stamp
                stamp_ns = stamp.sec * NS_PER_S + stamp.nanosec
                time_ns = sample.arrived_ns
                if config.stamp == "header" and stamp_ns > 0:
                    time_ns = times.capture_ns(stamp_ns, arrived_ns=sample.arrived_ns)
                yield Frame(time_ns=time_ns, images={self._key: image})

    def _check_publisher(self, heard: Subscription, *, has_seen: bool) -> None:
        if heard.num_publishers:
            return
        if has_seen:
            raise RobotError(f"the publisher of {self._config.topic} has gone")
        if heard.has_incompatible_qos:
            raise RobotError(f"{self._config.topic} is published with another quality of service: change `qos`")


class _BadFrame(Exception):
    """A compressed frame that cannot be decoded. The next one may be good."""


class _Images:
    """Turns messages into images of the configured size."""

    def __init__(self, config: RosImageConfig) -> None:
        self._config = config
        self._converter = PictureConverter(config)
        self._decoders: dict[str, Any] = {}
        width, height = config.size
        self._is_plain = config.crop is None and not config.rotate
        self._shape = (height, width)

    def image(self, message: Any) -> Array:
        """uint8 [H, W, 3] or uint16 [H, W, 1]. Raises RobotError for an encoding that is not supported."""
        if self._config.compressed:
            picture = self._decoded(message)
            if self._config.depth:
                return to_depth_image(_depth_plane(picture), self._config)
            return self._converter.convert(picture)
        if self._config.depth:
            return to_depth_image(_raw_depth(message), self._config)
        return self._raw_color(message)

    def _raw_color(self, message: Any) -> Array:
        from av import VideoFrame

        if message.encoding not in _FORMATS:
            raise RobotError(
                f"its encoding is '{shown(message.encoding)}' instead of {', '.join(_FORMATS)}. For 16UC1, set depth: true"
            )
        kind, num_bytes = _FORMATS[message.encoding]
        pixels = _rows(message, num_bytes).reshape(message.height, message.width, num_bytes)
        if kind == "rgb24" and self._is_plain and pixels.shape[:2] == self._shape:
            return pixels  # no copy: the message is not used again
        pixels = pixels[:, :, 0] if num_bytes == 1 else pixels
        return self._converter.convert(VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=kind))

    def _decoded(self, message: Any) -> VideoFrame:
        import av

        data = message.data.tobytes()
        name = _CODECS.get(data[:2])
        if name is None:
            raise _BadFrame(f"its data in format '{shown(message.format)}' is neither JPEG nor PNG")
        if name not in self._decoders:
            decoder: Any = av.CodecContext.create(name, "r")
            decoder.thread_count = 1
            decoder.options = dict(DECODER_OPTIONS)
            self._decoders[name] = decoder
        try:
            pictures = self._decoders[name].decode(av.Packet(data))
        except (av.FFmpegError, ValueError) as error:
            raise _BadFrame(one_line(error)) from error
        if not pictures:
            raise _BadFrame("it holds no picture")
        return pictures[-1]  # type: ignore[no-any-return]


def _number(heard: Subscription) -> int:
    return 0 if heard.newest is None else heard.newest.number


def _rows(message: Any, num_bytes: int) -> Array:
    """The pixels of each row, without padding, uint8 [H, W * num_bytes]."""
    height, width, step, data = message.height, message.width, message.step, message.data
    if not (0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE):
        raise RobotError(f"its picture of {width}x{height} has an impossible size")
    if step < width * num_bytes or len(data) != step * height:
        raise RobotError(
            f"its picture of {width}x{height} has {len(data)} bytes in rows of {step}, expected at least "
            f"{width * num_bytes} per row and {height} rows"
        )
    rows: Array = data.reshape(height, step)[:, : width * num_bytes]
    return rows


def _raw_depth(message: Any) -> Array:
    if message.encoding not in _DEPTH_ENCODINGS:
        raise RobotError(f"its encoding is '{shown(message.encoding)}' instead of {' or '.join(_DEPTH_ENCODINGS)}")
    rows = np.ascontiguousarray(_rows(message, 2))
    return rows.view(">u2" if message.is_bigendian else "<u2").astype(np.uint16)


def _depth_plane(picture: VideoFrame) -> Array:
    if not picture.format.name.startswith("gray16"):
        raise RobotError(f"its PNG has pixels of {picture.format.name} instead of 16 bits of depth")
    plane: Array = picture.to_ndarray().astype(np.uint16)
    return plane
