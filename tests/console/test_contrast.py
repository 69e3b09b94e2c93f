"""Colors of the style sheets: text is readable on every background on which it is used (WCAG 2.1, level AA)."""

import re

import pytest

from dovetail import console

CSS = console.__path__[0] + "/static/console.css"
TEXT = ("ink", "soft", "faint", "accent", "human", "good", "bad", "hold")
BACKGROUNDS = ("bg", "panel", "raised")
PAIRS = [  # text, background
    *((text, background) for text in TEXT for background in BACKGROUNDS),
    *((name, f"{name}-soft") for name in ("accent", "human", "bad", "hold")),
    ("on-accent", "accent"),
    ("on-bad", "bad"),
    ("on-stop", "stop"),
    ("on-stop", "confirmed"),
    ("on-picture", "picture"),
]
BORDERS = [("edge", background) for background in BACKGROUNDS] + [("focus", one) for one in BACKGROUNDS]


def read_themes():
    with open(CSS) as file:
        css = file.read()
    blocks = {"light": r":root \{(.*?)\n\}", "dark": r"body\.body--dark \{(.*?)\n\}"}
    found = {
        theme: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", re.search(block, css, re.DOTALL)[1]))
        for theme, block in blocks.items()
    }
    return {"light": found["light"], "dark": {**found["light"], **found["dark"]}}


THEMES = read_themes()


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_of_known_colors():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_a_contrast_of_at_least_4_5(theme):
    colors = THEMES[theme]
    low = {pair: round(contrast(colors[pair[0]], colors[pair[1]]), 2) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_borders_of_controls_and_focus_have_a_contrast_of_at_least_3(theme):
    colors = THEMES[theme]
    low = {pair: round(contrast(colors[pair[0]], colors[pair[1]]), 2) for pair in BORDERS}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 3.0} == {}
