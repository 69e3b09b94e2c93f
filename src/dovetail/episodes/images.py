"""How the log keeps images: which codec, and what it made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dovetail.core.errors import ConfigError, did_you_mean

__all__ = ["CODECS", "CameraInfo", "ImageCodec"]

CODECS = {"lossless": "ffv1", "h264": "h264", "av1": "av1"}  # as configs say it -> as manifests say it
_Name = Literal["auto", "lossless", "h264", "av1"]
_CRF = {"h264": (22, 51), "av1": (30, 63)}  # the one that is used, and the worst there is


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCodec:
    """What new episodes are written with. Reading never asks: each manifest says what its files are.

    `auto` keeps small pictures exactly and makes H.264 of those whose longer side is over `lossless_up_to_px`. Not
    AV1: of frames from our simulator at 640x480 it makes files 30 % smaller at the same PSNR, but takes three
    times as long, and its encoder starts threads of its own beside a control loop (`dovetail bench images`). Small
    pictures are exact because colour at half resolution costs them most: 36 dB at 128 px, 43 dB at 640.

    Depth (uint16) is exact whatever is said here: a video codec would round metres away.
    """

    name: _Name = "auto"
    lossless_up_to_px: int = 128
    crf: int | None = None  # constant rate factor: lower is better and larger; None: 22 of H.264, 30 of AV1

    def __post_init__(self) -> None:
        if self.name not in get_args(_Name):
            raise ConfigError(f"no image codec '{self.name}'.{did_you_mean(self.name, get_args(_Name))}")
        worst = _CRF[self.lossy][1]
        if self.crf is not None and not 0 <= self.crf <= worst:
            raise ConfigError(f"crf {self.crf} is not possible: {self.lossy} takes 0 (best) to {worst}")

    @property
    def lossy(self) -> str:
        """The codec of images that are not kept exactly."""
        return "av1" if self.name == "av1" else "h264"

    @property
    def quality(self) -> int:
        return _CRF[self.lossy][0] if self.crf is None else self.crf

    def choose(self, *, shape: tuple[int, ...], dtype: str) -> str:
        """The codec for frames of a shape [H, W, C]: `ffv1`, `h264` or `av1`."""
        small = max(shape[:2]) <= self.lossless_up_to_px
        if dtype != "uint8" or self.name == "lossless" or (self.name == "auto" and small):
            return CODECS["lossless"]
        return self.lossy


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraInfo:
    """What became of one camera's images, measured when they were written."""

    codec: str  # ffv1 (exact), h264 or av1
    num_frames: int  # distinct ones
    shape: tuple[int, ...]  # [H, W, C] of one
    dtype: str
    num_bytes: int  # of the file
    raw_bytes: int  # of the distinct frames as arrays
    psnr_db: float | None  # of what is read against what was seen; None: exact
