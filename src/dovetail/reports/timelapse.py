"""Many episodes as one video, one after another, each with a border in the color of its outcome.

Frames are drawn one at a time and not kept, so the video may have any length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dovetail.core.types import Array, Outcome

__all__ = ["Pace", "Scene", "time_lapse"]

_Color = tuple[int, int, int]
COLORS: dict[Outcome, _Color] = {
    Outcome.SUCCESS: (52, 199, 123),
    Outcome.FAILURE: (236, 84, 84),
    Outcome.TIMEOUT: (240, 180, 60),
    Outcome.ABORTED: (120, 128, 144),
}
_BACKGROUND: _Color = (15, 18, 26)
_TEXT: _Color = (236, 239, 244)
_MAX_FPS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One episode of the video."""

    frames: Iterable[Array]  # uint8 [H, W, 3]
    caption: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of a video: `speed` times real time, at `fps` frames per second for all episodes."""

    speed: float
    fps: float

    @staticmethod
    def of(control_hz: float, *, speed: float) -> Pace:
        """Show as many of the robot's steps as a screen can."""
        every = max(1, math.ceil(control_hz * speed / _MAX_FPS - 1e-9))
        return Pace(speed=speed, fps=control_hz * speed / every)

    def every(self, control_hz: float) -> int:
        """Show each n-th step of a robot with this control rate."""
        return max(1, round(control_hz * self.speed / self.fps))


def time_lapse(scenes: Iterable[Scene], *, size_px: int, hold_frames: int = 0) -> Iterator[Array]:
    """The frames of the whole video. The first image sets their size; the last frame of a scene is repeated.

    The longer side of an image becomes `size_px`; images of another shape are scaled to fit.
    """
    canvas: _Canvas | None = None
    for scene in scenes:
        frame = None
        for image in scene.frames:
            canvas = canvas or _Canvas(image, size_px)
            if frame is None:
                canvas.start(scene)
            frame = canvas.draw(image)
            yield frame
        if frame is not None:
            yield from itertools.repeat(frame, hold_frames)


class _Canvas:
    """A border, the image, and a line of text below it."""

    def __init__(self, first: Array, size_px: int) -> None:
        height, width = first.shape[:2]
        scale = size_px / max(height, width)
        self._inner = (max(1, round(width * scale)), max(1, round(height * scale)))
        self._border = max(3, size_px // 80)
        self._strip = max(14, size_px // 16)
        outer = (self._inner[0] + 2 * self._border, self._inner[1] + 2 * self._border + self._strip)
        self._canvas = Image.new("RGB", outer, _BACKGROUND)

    def start(self, scene: Scene) -> None:
        """Draw the border and the caption once for all frames of an episode."""
        canvas, border = self._canvas, self._border
        color = COLORS[scene.outcome]
        canvas.paste(color, (0, 0, *canvas.size))
        top = self._inner[1] + 2 * border
        canvas.paste(_BACKGROUND, (0, top, *canvas.size))
        draw = ImageDraw.Draw(canvas)
        font = _fitting_font(draw, scene.caption, width=canvas.width - 4 * border, height=self._strip)
        middle = top + self._strip // 2
        draw.text((2 * border, middle), scene.caption, font=font, fill=_TEXT, anchor="lm")

    def draw(self, frame: Array) -> Array:
        image = Image.fromarray(frame)
        width, height = self._inner
        scale = min(width / image.width, height / image.height)
        fitted = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        if fitted != image.size:
            image = image.resize(fitted, Image.Resampling.BICUBIC)
        border = self._border
        if fitted != self._inner:
            self._canvas.paste(_BACKGROUND, (border, border, border + width, border + height))
        corner = (border + (width - fitted[0]) // 2, border + (height - fitted[1]) // 2)
        self._canvas.paste(image, corner)
        return np.array(self._canvas)


def _fitting_font(
    draw: ImageDraw.ImageDraw, text: str, *, width: int, height: int
) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The largest font in which the line fits; a very long line is cut off."""
    for size in range(max(8, round(0.6 * height)), 7, -1):
        font = ImageFont.load_default(size)
        if draw.textlength(text, font) <= width:
            break
    return font
