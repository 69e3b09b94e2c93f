"""Which part of a captured picture becomes an image, and of which size: crop, then rotate, then resize."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dovetail.config.model import Config
from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

if TYPE_CHECKING:
    from av import VideoFrame
    from av.filter import Graph

__all__ = [
    "DECODER_OPTIONS",
    "MAX_PIXELS",
    "Crop",
    "DevicePictureConfig",
    "PictureConfig",
    "PictureConverter",
    "Side",
    "image_spec",
    "to_depth_image",
]

Side = Annotated[int, Field(ge=1, le=8192)]
Crop = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Side, Side]
MAX_PIXELS = 8192 * 4320
"""Of a captured picture. A few kilobytes from a network can announce far more, and decode to gigabytes."""
DECODER_OPTIONS = {
    "err_detect": "explode",  # a damaged picture is an error, not a picture with gray areas
    "max_pixels": str(MAX_PIXELS),  # checked before memory is allocated
}
_TRANSPOSE = {90: ("transpose=clock",), 180: ("hflip", "vflip"), 270: ("transpose=cclock",)}


class PictureConfig(Config):
    """Settings that every camera of this folder has."""

    BASIC: ClassVar[Collection[str]] = ("size", "fps", "rotate", "crop")

    size: tuple[Side, Side] = (640, 480)
    """Width and height of the images, after crop and rotation."""
    fps: float = Field(default=30.0, gt=0, le=1000)
    """Frames per second that the device should give."""
    rotate: Literal[0, 90, 180, 270] = 0
    """Clockwise rotation in degrees."""
    crop: Crop | None = None
    """Part of the captured picture to use: x, y, width, height in captured pixels. Null: all of it."""
    timeout_s: float = Field(default=5.0, gt=0)
    """The camera is lost if opening it, or the next frame, takes longer than this."""

    @property
    def turned_size(self) -> tuple[int, int]:
        """The size before the rotation."""
        width, height = self.size
        return (height, width) if self.rotate in (90, 270) else (width, height)


class DevicePictureConfig(PictureConfig):
    """Settings of a camera that can capture in several sizes."""

    capture_size: tuple[Side, Side] | None = None
    """Width and height that the device captures. Null: `size`, before the rotation. Needed with `crop`."""

    @property
    def max_fps(self) -> float:
        """The device is set to this rate. A stream (`video`) may be faster than its `fps`."""
        return self.fps

    @model_validator(mode="after")
    def _crop_of_known_size(self) -> Self:
        if self.crop is not None and self.capture_size is None:
            raise PydanticCustomError(
                "crop", "crop needs capture_size: the width and height that the device captures"
            )
        return self

    @property
    def captured_size(self) -> tuple[int, int]:
        return self.capture_size or self.turned_size


def image_spec(config: PictureConfig) -> ArraySpec:
    """The spec of a color image."""
    width, height = config.size
    return ArraySpec(shape=(height, width, 3), dtype="uint8")


class PictureConverter:
    """Converts decoded pictures of one camera to RGB images. All pictures must have the size of the first."""

    def __init__(self, config: PictureConfig, *, captured_size: tuple[int, int] | None = None) -> None:
        self._config = config
        self._captured = captured_size  # (width, height); None: that of the first picture
        self._format = ""
        self._graph: Graph | None = None

    def convert(self, picture: VideoFrame) -> Array:
        """An image [H, W, 3]. A view of the new picture's memory where that has no padding."""
        self._check(picture)
        if self._config.crop is None and not self._config.rotate:
            width, height = self._config.size
            # 1 thread: the image is small, and the control loop needs the other cores
            return _rgb_view(picture.reformat(width=width, height=height, format="rgb24", threads=1))
        if self._graph is None or self._format != picture.format.name:
            self._graph, self._format = self._make_graph(picture), picture.format.name
        picture.pts = 0
        self._graph.vpush(picture)
        return _rgb_view(self._graph.vpull())

    def _check(self, picture: VideoFrame) -> None:
        size = (picture.width, picture.height)
        if self._captured is None:
            self._captured = size
        if size != self._captured:
            width, height = self._captured
            raise RobotError(f"it gives pictures of {size[0]}x{size[1]} instead of {width}x{height}")
        if self._config.crop is not None:
            x, y, width, height = self._config.crop
            if x + width > size[0] or y + height > size[1]:
                raise RobotError(f"crop {list(self._config.crop)} is outside its picture of {size[0]}x{size[1]}")

    def _make_graph(self, picture: VideoFrame) -> Graph:
        from av.filter import Graph

        graph, config = Graph(), self._config
        graph.threads = 1
        width, height = config.turned_size
        filters = [f"scale={width}:{height}:flags=bilinear", "format=rgb24", *_TRANSPOSE.get(config.rotate, ())]
        if config.crop is not None:
            x, y, crop_width, crop_height = config.crop
            filters.insert(0, f"crop={crop_width}:{crop_height}:{x}:{y}:exact=1")
        last = graph.add_buffer(
            width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1, 1000)
        )
        for text in (*filters, "buffersink"):
            name, _, arguments = text.partition("=")
            node = graph.add(name, arguments) if arguments else graph.add(name)
            last.link_to(node)
            last = node
        graph.configure()
        return graph


def to_depth_image(depth: Array, config: PictureConfig) -> Array:
    """Crop, rotate and resize depth [H, W] to [H, W, 1]. Takes the nearest pixel: a mean of two depths is neither."""
    if config.crop is not None:
        x, y, width, height = config.crop
        depth = depth[y : y + height, x : x + width]
    depth = np.rot90(depth, -config.rotate // 90)
    width, height = config.size
    if depth.shape != (height, width):
        rows = (np.arange(height) * 2 + 1) * depth.shape[0] // (2 * height)
        columns = (np.arange(width) * 2 + 1) * depth.shape[1] // (2 * width)
        depth = depth[rows[:, None], columns]
    return np.ascontiguousarray(depth)[:, :, None]


def _rgb_view(picture: VideoFrame) -> Array:
    plane, width, height = picture.planes[0], picture.width, picture.height
    rows = np.frombuffer(memoryview(plane), np.uint8)[: plane.line_size * height].reshape(height, plane.line_size)
    image: Array = rows[:, : 3 * width].reshape(height, width, 3)
    return image
