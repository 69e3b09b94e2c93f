"""Write MP4 videos from a stream of frames, and compare two groups of episodes side by side.

Frames are drawn and encoded one at a time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array
from dovetail.episodes._frames import start_encoding

__all__ = ["Clip", "side_by_side", "write_video"]


def write_video(path: Path | str, frames: Iterable[Array], *, fps: float) -> int:
    """Encode uint8 frames [H, W, 3] as H.264 for any player and browser; returns the number of frames.

    The file appears only when it is complete. Odd sizes are padded by repeating the edge, because yuv420p needs even ones.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")  # no link can wait under this name
    count = 0
    try:
        with av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
            stream.pix_fmt = "yuv420p"
            stream.options = {"crf": "20", "preset": "veryfast"}
            for frame in frames:
                even = _even(frame)
                if count == 0:
                    stream.height, stream.width = even.shape[:2]
                    start_encoding(container)
                elif even.shape[:2] != (stream.height, stream.width):
                    raise UsageError(
                        f"frame {count} has size {even.shape[:2]}, but the video has {stream.height, stream.width}"
                    )
                container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
                count += 1
            if count == 0:
                raise UsageError(f"cannot write {path}: there are no frames")
            container.mux(stream.encode(None))
        os.replace(partial, path)
    except (OSError, av.FFmpegError) as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


def _even(frame: Array) -> Array:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UsageError(f"a video frame must be uint8 [H, W, 3], but is {frame.dtype}{list(frame.shape)}")
    height, width = frame.shape[:2]
    return np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Frames of an episode, and whether it succeeded."""

    frames: Iterable[Array]  # uint8 [H, W, 3]
    success: bool
    caption: str = ""


_Color = tuple[int, int, int]
_BACKGROUND: _Color = (15, 18, 26)
_PANEL: _Color = (24, 29, 40)
_TEXT: _Color = (236, 239, 244)
_MUTED: _Color = (140, 150, 168)
_SUCCESS: _Color = (52, 199, 123)
_FAILURE: _Color = (236, 84, 84)
_MARGIN, _GAP, _HEADER, _BORDER, _RADIUS = 24, 12, 64, 5, 12


def side_by_side(
    left: Sequence[Clip],
    right: Sequence[Clip],
    *,
    left_title: str = "before",
    right_title: str = "after",
    fps: float = 10.0,
    hold_s: float = 1.5,
    tile_px: int = 224,
) -> Iterator[Array]:
    """Yield the frames of two titled grids of clips that play at the same time, then freeze for `hold_s`.

    A clip that has ended shows its last frame with a green (success) or red (failure) border, so in the end the grids show
    two success rates.
    """
    if not left or not right:
        raise UsageError("a comparison needs at least one clip on each side")
    grids = [_Grid(left, left_title, tile_px), _Grid(right, right_title, tile_px)]
    height = max(grid.height for grid in grids)
    canvas = Image.new("RGB", (sum(g.width for g in grids) + 3 * _MARGIN, height + 2 * _MARGIN), _BACKGROUND)
    x = _MARGIN
    for grid in grids:
        grid.draw_frame(canvas, x, _MARGIN, height)
        x += grid.width + _MARGIN
    playing = True
    while playing:
        moved = [grid.advance(canvas) for grid in grids]  # a list, so that every grid advances
        playing = any(moved)
        yield np.asarray(canvas).copy()
    for _ in range(round(hold_s * fps)):
        yield np.asarray(canvas).copy()


class _Grid:
    """One side: a panel with a title, the number of successes so far, and a tile per clip."""

    def __init__(self, clips: Sequence[Clip], title: str, tile_px: int) -> None:
        self._title = title
        self._num_columns = int(np.ceil(np.sqrt(len(clips))))
        num_rows = -(-len(clips) // self._num_columns)
        self._tiles = [_Tile(clip, tile_px) for clip in clips]
        self._pitch = tile_px + _GAP
        self.width = self._num_columns * self._pitch + _GAP
        self.height = num_rows * self._pitch + _GAP + _HEADER
        self._x, self._y = 0, 0

    def draw_frame(self, canvas: Image.Image, x: int, y: int, height: int) -> None:
        self._x, self._y = x, y
        box = (x, y, x + self.width - 1, y + height - 1)
        ImageDraw.Draw(canvas).rounded_rectangle(box, radius=_RADIUS + _GAP // 2, fill=_PANEL)

    def advance(self, canvas: Image.Image) -> bool:
        """Show the next frame of every clip; returns whether any clip had one."""
        moved = [tile.advance() for tile in self._tiles]
        for number, tile in enumerate(self._tiles):
            row, column = divmod(number, self._num_columns)
            place = (self._x + _GAP + column * self._pitch, self._y + _HEADER + row * self._pitch)
            canvas.paste(tile.picture, place)
        self._draw_title(canvas)
        return any(moved)

    def _draw_title(self, canvas: Image.Image) -> None:
        draw = ImageDraw.Draw(canvas)
        left, right, middle = self._x + _GAP + 4, self._x + self.width - _GAP - 4, self._y + _HEADER // 2
        draw.rectangle((left, middle - 20, right, middle + 20), fill=_PANEL)
        ended = [tile.clip.success for tile in self._tiles if tile.ended]
        score = f"{sum(ended)} / {len(ended)}" if ended else ""
        small = ImageFont.load_default(20)
        draw.text((right, middle), score, font=small, fill=_MUTED, anchor="rm")
        width_px = right - left - int(draw.textlength(score, small)) - _GAP
        draw.text(
            (left, middle), self._title, font=_largest_font(draw, self._title, width_px), fill=_TEXT, anchor="lm"
        )


def _largest_font(
    draw: ImageDraw.ImageDraw, text: str, width_px: int
) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the largest font in which the text fits."""
    for size in range(24, 10, -1):
        font = ImageFont.load_default(size)
        if draw.textlength(text, font) <= width_px:
            break
    return font


class _Tile:
    """One clip in a square with a border. It shows its last frame after the end."""

    def __init__(self, clip: Clip, size_px: int) -> None:
        self.clip = clip
        self.ended = False
        self._frames = iter(clip.frames)
        self._size = size_px
        self._mask = _rounded(size_px, inset=0, radius=_RADIUS)
        self._inner = _rounded(size_px, inset=_BORDER, radius=_RADIUS - 3)
        self._last = Image.new("RGB", (size_px, size_px), _BACKGROUND)
        self.picture = self._frame(_BACKGROUND)

    def advance(self) -> bool:
        if self.ended:
            return False
        frame = next(self._frames, None)
        self.ended = frame is None
        if frame is not None:
            self._last = self._fit(frame)
        color = _SUCCESS if self.clip.success else _FAILURE
        self.picture = self._frame(color if self.ended else _BACKGROUND)
        return frame is not None

    def _fit(self, frame: Array) -> Image.Image:
        """Scale a frame to the square, keep its aspect ratio, and draw the caption at the bottom."""
        picture = Image.fromarray(frame)
        scale = self._size / max(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC
        )
        square = Image.new("RGB", (self._size, self._size), (0, 0, 0))
        square.paste(picture, ((self._size - picture.width) // 2, (self._size - picture.height) // 2))
        if self.clip.caption:
            draw = ImageDraw.Draw(square)
            place = (_BORDER + 8, self._size - _BORDER - 7)
            font = ImageFont.load_default(15)
            draw.text(
                place,
                self.clip.caption,
                font=font,
                fill=_TEXT,
                anchor="ls",
                stroke_width=2,
                stroke_fill=_BACKGROUND,
            )
        return square

    def _frame(self, border: _Color) -> Image.Image:
        tile = Image.new("RGB", (self._size, self._size), _PANEL)
        tile.paste(border, (0, 0), self._mask)
        tile.paste(self._last, (0, 0), self._inner)
        return tile


def _rounded(size_px: int, *, inset: int, radius: int) -> Image.Image:
    """Mask of a square with round corners, drawn at four times the size for smooth edges."""
    mask = Image.new("L", (4 * size_px, 4 * size_px), 0)
    low, high = 4 * inset, 4 * (size_px - inset) - 1
    ImageDraw.Draw(mask).rounded_rectangle((low, low, high, high), radius=4 * radius, fill=255)
    return mask.resize((size_px, size_px), Image.Resampling.LANCZOS)
