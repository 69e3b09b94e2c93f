"""A camera of this machine through Video4Linux2: USB webcams and capture cards. Linux only."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dovetail.robots.cameras.capture import Capture, VideoSource
from dovetail.robots.cameras.pictures import PictureConfig, Side
from dovetail.robots.cameras.timing import KernelTimes

__all__ = ["V4l2Camera", "V4l2Config"]

_FORMATS = {"mjpeg": {"input_format": "mjpeg"}, "yuyv": {"pixel_format": "yuyv422"}}


class V4l2Config(PictureConfig):
    """A camera of this machine."""

    BASIC: ClassVar[Collection[str]] = ("device",)

    device: str = Field(default="/dev/video0", pattern=r"^/dev/[\w./:-]+$")
    """The device. A path in /dev/v4l/by-id stays the same when cameras are plugged in elsewhere."""
    format: Literal["mjpeg", "yuyv"] = "mjpeg"
    """How the device sends pictures. USB 2 has room for one camera of 640x480 at 30 fps in yuyv, for several in mjpeg."""
    capture_size: tuple[Side, Side] | None = None
    """Width and height that the device captures. Null: `size`, before the rotation. Needed with `crop`."""

    @model_validator(mode="after")
    def _crop_of_known_size(self) -> Self:
        if self.crop is not None and self.capture_size is None:
            raise PydanticCustomError(
                "crop", "crop needs capture_size: the width and height that the device captures"
            )
        return self


class V4l2Camera(Capture):
    """A camera of this machine through Video4Linux2, decoded by FFmpeg. Frames have the kernel's capture times."""

    Config: ClassVar[type[V4l2Config]] = V4l2Config

    def __init__(self, config: V4l2Config, *, name: str) -> None:
        width, height = size = config.capture_size or config.turned_size
        source = VideoSource(
            url=config.device,
            label=config.device,
            format="video4linux2",
            options={
                **_FORMATS[config.format],
                "video_size": f"{width}x{height}",
                "framerate": f"{config.fps:g}",
                "timestamps": "default",  # those of the kernel, unchanged
            },
            captured_size=size,
            times=KernelTimes,
        )
        super().__init__(config, source, name=name)
