"""Image codecs of the episode log, and what the log reports about each camera's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dovetail.core.errors import ConfigError, did_you_mean

__all__ = ["CODECS", "CameraInfo", "ImageCodec"]

CODECS = {"lossless": "ffv1", "h264": "h264", "av1": "av1"}  # name in configs -> name in manifests
_Name = Literal["auto", "lossless", "h264", "av1"]
_CRF = {"h264": (22, 51), "av1": (30, 63)}  # default, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCodec:
    """Codec of new episodes. Reading does not need it: each manifest names the codec of its files.

    `auto` stores small images losslessly and uses H.264 if the longer side exceeds `lossless_up_to_px`. It does not use
    AV1, whose files are 30 % smaller at the same PSNR (simulated frames, 640x480), but which takes three times as long and
    starts threads next to the control loop (`dovetail bench images`). Small images are lossless because color at half
    resolution costs them most: PSNR is 36 dB at 128 px, 43 dB at 640 px.

    Depth (uint16) is always lossless, because a video codec would round it by meters.
    """

    name: _Name = "auto"
    lossless_up_to_px: int = 128
    crf: int | None = None  # constant rate factor: lower is better and larger; None: 22 for H.264, 30 for AV1

    def __post_init__(self) -> None:
        if self.name not in get_args(_Name):
            raise ConfigError(f"no image codec '{self.name}'.{did_you_mean(self.name, get_args(_Name))}")
        worst = _CRF[self.lossy][1]
        if self.crf is not None and not 0 <= self.crf <= worst:
            raise ConfigError(f"crf is {self.crf}, but {self.lossy} accepts 0 (best) to {worst}")

    @property
    def lossy(self) -> str:
        """Codec of images that are not stored losslessly."""
        return "av1" if self.name == "av1" else "h264"

    @property
    def quality(self) -> int:
        return _CRF[self.lossy][0] if self.crf is None else self.crf

    def choose(self, *, shape: tuple[int, ...], dtype: str) -> str:
        """Return the codec for frames of shape [H, W, C]: `ffv1`, `h264` or `av1`."""
        small = max(shape[:2]) <= self.lossless_up_to_px
        if dtype != "uint8" or self.name == "lossless" or (self.name == "auto" and small):
            return CODECS["lossless"]
        return self.lossy


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraInfo:
    """Size and quality of one camera's images, measured when they were written."""

    codec: str  # ffv1 (lossless), h264 or av1
    num_frames: int  # distinct frames
    shape: tuple[int, ...]  # [H, W, C] of a frame
    dtype: str
    num_bytes: int  # of the file
    raw_bytes: int  # of the distinct frames as arrays
    psnr_db: float | None  # of the stored frames against the recorded ones; None: lossless
