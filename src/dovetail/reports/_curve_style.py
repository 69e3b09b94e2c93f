"""Colors, titles and running means of the learning curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core.figures import EpisodeScore

if TYPE_CHECKING:  # imported when the first plot is drawn, because it takes a second
    from matplotlib.axes import Axes

__all__ = ["WINDOW", "CurveEpisode", "last_episodes", "panel_title", "running_mean"]

WINDOW = 20  # episodes

INK, QUIET, FAINT, GRID = "#1f2a37", "#6b7785", "#aab4bf", "#e8ebef"
LEARNED, BEFORE = "#1d7f6e", "#8a6fae"
HELPED, HELPED_TEXT, UNSOLVED = "#e0a03c", "#b0760f", "#c8553d"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveEpisode:
    """One online episode in the plot."""

    end_minutes: float  # robot time from the first online step to this episode's end
    score: EpisodeScore
    human_share: float  # share of its steps by an operator


def running_mean(values: Sequence[float], window: int = WINDOW) -> NDArray[np.float64]:
    """At each index, the mean of the last `window` values, or of all if there are fewer."""
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def last_episodes(num_episodes: int) -> str:
    """The window of a running mean in words, `the last 20`, or fewer if there are fewer."""
    return f"the last {min(WINDOW, num_episodes) or WINDOW}"


def panel_title(axes: Axes, *parts: tuple[str, str]) -> None:
    """The title of a panel, above its left corner; each part has the color of its curve. Only the x axis has a line."""
    from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea

    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, pad=6)
    pieces = [
        TextArea(
            text,
            textprops={"color": color, "fontsize": 10.5, "fontweight": "normal" if color == QUIET else "bold"},
        )
        for text, color in parts
    ]
    line = HPacker(children=list(pieces), align="baseline", pad=0, sep=4)
    box = AnnotationBbox(
        line,
        (0.0, 1.0),
        xycoords="axes fraction",
        xybox=(0.0, 6.0),
        boxcoords="offset points",
        box_alignment=(0.0, 0.0),
        frameon=False,
        pad=0.0,
        annotation_clip=False,
    )
    axes.add_artist(box)
