"""Many episodes as one film: one after another, each in a border that says how it ended.

Everything streams: a frame is drawn, handed over and forgotten, so the film may be of any length.
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

_Colour = tuple[int, int, int]
COLOURS: dict[Outcome, _Colour] = {
    Outcome.SUCCESS: (52, 199, 123),
    Outcome.FAILURE: (236, 84, 84),
    Outcome.TIMEOUT: (240, 180, 60),
    Outcome.ABORTED: (120, 128, 144),
}
_BACKGROUND: _Colour = (15, 18, 26)
_TEXT: _Colour = (236, 239, 244)
_MAX_FPS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One episode of a film."""

    frames: Iterable[Array]  # uint8 [H, W, 3]
    caption: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a film goes: `speed` times real time, shown at `fps` frames a second, which all episodes share."""

    speed: float
    fps: float

    @staticmethod
    def of(control_hz: float, *, speed: float) -> Pace:
        """As many of a robot's steps as a screen can show."""
        every = max(1, math.ceil(control_hz * speed / _MAX_FPS - 1e-9))
        return Pace(speed=speed, fps=control_hz * speed / every)

    def every(self, control_hz: float) -> int:
        """Show each n-th step of a robot that makes so many a second."""
        return max(1, round(control_hz * self.speed / self.fps))


def time_lapse(scenes: Iterable[Scene], *, size_px: int, hold_frames: int = 0) -> Iterator[Array]:
    """Frames of the whole film, all of one size, which the first one decides; the last of a scene stays a while.

    The longer side of a picture becomes `size_px`; pictures of another shape are fitted in.
    """
    stage: _Stage | None = None
    for scene in scenes:
        frame = None
        for picture in scene.frames:
            stage = stage or _Stage(picture, size_px)
            if frame is None:
                stage.set(scene)
            frame = stage.draw(picture)
            yield frame
        if frame is not None:
            yield from itertools.repeat(frame, hold_frames)


class _Stage:
    """The canvas: a border, the picture, and a line of text under it."""

    def __init__(self, picture: Array, size_px: int) -> None:
        height, width = picture.shape[:2]
        scale = size_px / max(height, width)
        self._room = (max(1, round(width * scale)), max(1, round(height * scale)))
        self._border = max(3, size_px // 80)
        self._strip = max(14, size_px // 16)
        outer = (self._room[0] + 2 * self._border, self._room[1] + 2 * self._border + self._strip)
        self._canvas = Image.new("RGB", outer, _BACKGROUND)

    def set(self, scene: Scene) -> None:
        """Border and caption of an episode: drawn once for all its frames."""
        canvas, border = self._canvas, self._border
        colour = COLOURS[scene.outcome]
        canvas.paste(colour, (0, 0, *canvas.size))
        top = self._room[1] + 2 * border
        canvas.paste(_BACKGROUND, (0, top, *canvas.size))
        draw = ImageDraw.Draw(canvas)
        font = _fitting(draw, scene.caption, width=canvas.width - 4 * border, height=self._strip)
        middle = top + self._strip // 2
        draw.text((2 * border, middle), scene.caption, font=font, fill=_TEXT, anchor="lm")

    def draw(self, frame: Array) -> Array:
        picture = Image.fromarray(frame)
        width, height = self._room
        scale = min(width / picture.width, height / picture.height)
        fitted = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        if fitted != picture.size:
            picture = picture.resize(fitted, Image.Resampling.BICUBIC)
        border = self._border
        if fitted != self._room:
            self._canvas.paste(_BACKGROUND, (border, border, border + width, border + height))
        place = (border + (width - fitted[0]) // 2, border + (height - fitted[1]) // 2)
        self._canvas.paste(picture, place)
        return np.array(self._canvas)


def _fitting(
    draw: ImageDraw.ImageDraw, text: str, *, width: int, height: int
) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The largest font in which a line fits its strip; a very long one runs out of the picture."""
    for size in range(max(8, round(0.6 * height)), 7, -1):
        font = ImageFont.load_default(size)
        if draw.textlength(text, font) <= width:
            break
    return font
