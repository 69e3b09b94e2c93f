"""A camera of this machine through Video4Linux2: USB webcams and capture cards. Linux only."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.robots.cameras.capture import Capture, VideoSource
from dovetail.robots.cameras.pictures import DevicePictureConfig
from dovetail.robots.cameras.timing import KernelTimes

__all__ = ["V4l2Camera", "V4l2Config"]

_FORMATS = {"mjpeg": {"input_format": "mjpeg"}, "yuyv": {"pixel_format": "yuyv422"}}


class V4l2Config(DevicePictureConfig):
    """A camera of this machine."""

    BASIC: ClassVar[Collection[str]] = ("device",)

    device: str = Field(default="/dev/video0", pattern=r"^/dev/[\w./:-]+$")
    """The device. A path in /dev/v4l/by-id stays the same when cameras are plugged in elsewhere."""
    format: Literal["mjpeg", "yuyv"] = "mjpeg"
    """How the device sends pictures. USB 2 has room for one camera of 640x480 at 30 fps in yuyv, for several in mjpeg."""


class V4l2Camera(Capture):
    """A camera of this machine through Video4Linux2, decoded by FFmpeg. Frames have the kernel's capture times."""

    Config: ClassVar[type[V4l2Config]] = V4l2Config

    def __init__(self, config: V4l2Config, *, name: str) -> None:
        width, height = config.captured_size
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
            captured_size=(width, height),
            times=KernelTimes,
        )
        super().__init__(config, source, name=name)
