"""A video file, or a stream over HTTP or RTSP, as a camera. Read by the same class as V4L2 devices."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from dovetail.robots.cameras.capture import Capture, VideoSource
from dovetail.robots.cameras.pictures import PictureConfig
from dovetail.robots.cameras.timing import StreamTimes

__all__ = ["VideoCamera", "VideoConfig"]

# What FFmpeg may use for each kind of address. It never follows a file or playlist to another protocol.
_PROTOCOLS = {
    "": "file",
    "file": "file",
    "http": "http,tcp",
    "https": "https,http,tls,tcp",
    "rtsp": "rtsp,rtp,udp,tcp",
}
# No playlists (hls, dash, concat): they name further addresses.
_CONTAINERS = "mpjpeg,mjpeg,jpeg_pipe,nut,matroska,webm,mov,mp4,avi,mpegts,h264,hevc,flv,ogg,ivf,rtsp,rtp,sdp"


class VideoConfig(PictureConfig):
    """A video file or a stream."""

    BASIC: ClassVar[Collection[str]] = ("url", "loop")

    url: str
    """A file, or http://HOST:PORT/..., https://HOST/... or rtsp://HOST/..."""
    loop: bool = True
    """Start a file again at its end. Without it the camera is lost there."""
    timestamps: Literal["arrival", "stream"] = "arrival"
    """Capture time of a stream's frame: when it arrives, or the stream's own time stamp with an estimated offset."""

    @model_validator(mode="after")
    def _known_protocol(self) -> Self:
        parts = _split(self.url)
        if parts.scheme not in _PROTOCOLS:
            valid = ", ".join(f"{name}://" for name in _PROTOCOLS if name)
            raise PydanticCustomError(
                "url",
                "url should be a file or start with {valid}, got '{scheme}:'",
                {"valid": valid, "scheme": parts.scheme},
            )
        if parts.scheme in ("http", "https", "rtsp") and not parts.hostname:
            raise PydanticCustomError(
                "url", "url should name a host: {scheme}://HOST:PORT/...", {"scheme": parts.scheme}
            )
        return self


class VideoCamera(Capture):
    """A video file, or an MJPEG, RTSP or other stream that FFmpeg reads."""

    Config: ClassVar[type[VideoConfig]] = VideoConfig

    def __init__(self, config: VideoConfig, *, name: str) -> None:
        parts = _split(config.url)
        is_file = parts.scheme in ("", "file")
        options = {"protocol_whitelist": _PROTOCOLS[parts.scheme], "format_whitelist": _CONTAINERS}
        if not is_file:
            # a short look at the stream: seconds of it would delay every frame
            options |= {"fflags": "nobuffer", "flags": "low_delay", "probesize": "500000", "analyzeduration": "0"}
        if parts.scheme in ("http", "https"):
            options |= {"max_redirects": "0"}  # another host is another camera
        if parts.scheme == "rtsp":
            options |= {"rtsp_transport": "tcp"}
        source = VideoSource(
            # `file:` in front, so that FFmpeg reads no name as another protocol
            url=f"file:{Path(config.url.removeprefix('file://')).expanduser()}" if is_file else config.url,
            label=_without_password(parts, config.url),
            options=options,
            times=StreamTimes if config.timestamps == "stream" and not is_file else None,
            paced=is_file,
            loops=is_file and config.loop,
        )
        super().__init__(config, source, name=name)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PydanticCustomError("url", "url cannot be read: {error}", {"error": str(error)}) from error
    return parts if "://" in url else parts._replace(scheme="")


def _without_password(parts: SplitResult, url: str) -> str:
    return url.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else url
