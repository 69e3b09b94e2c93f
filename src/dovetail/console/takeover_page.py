"""Take over: drive the arm with the keyboard, a gamepad or on-screen sticks, and rate the episode."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.layout import Page, frame
from dovetail.console.run_files import OpenRun
from dovetail.console.widgets import ARMS, CAMERAS, CONTROL, buttons

__all__ = ["PAGE"]

_KEYS = (("WASD", "move"), ("EQ", "up, down"), ("←→", "turn"), ("↑↓", "tilt"), (",.", "roll"), ("G", "gripper"))


def _stick(name: str, *, right: str, up: str, what: str) -> str:
    """`right` and `up` are the names of the axes; a minus after one inverts it."""
    stick = (
        f'<div class="dt-stick" id="dt-stick-{name}" data-right="{right}" data-up="{up}" role="img" '
        f'aria-label="stick: {what}"><i></i></div>'
    )
    return f'<div class="dt-stickbox dt-stickbox-{name}">{stick}<span>{what}</span></div>'


_DRIVE = f"""
<label id="dt-part-box" class="dt-part" hidden>part <select id="dt-part"></select></label>
<div class="dt-drive" id="dt-drive">
{_stick("left", right="dy-", up="dx", what="move")}
<div class="dt-middle">
<button id="dt-hold" class="dt-hold"><b>Hold to drive</b><kbd>Space</kbd></button>
<div id="dt-source" class="dt-quiet" role="status">keys, sticks or a gamepad</div>
</div>
{_stick("right", right="drz-", up="dz", what="lift, turn")}
</div>
<div id="dt-jogs" class="dt-jogs" role="group" aria-label="axes" hidden></div>
<div class="dt-under">
<label>speed <input id="dt-speed" type="range" min="10" max="100" value="100" step="5"></label>
<button id="dt-gripper" class="dt-button">gripper <kbd>g</kbd></button>
</div>
<div id="dt-hint" class="dt-hint" role="status"></div>"""

_MAP = "".join(
    f"<span>{''.join(f'<kbd>{key}</kbd>' for key in keys)} {what}</span>"
    for keys, what in (*_KEYS, (("Shift",), "slowly"), (("gamepad",), "hold a bumper"))
)


def register(app: FastAPI, run: OpenRun) -> None:
    events = buttons("success", "failure", "discard", "reset", "start", "pause", "acknowledge")

    @ui.page("/takeover")
    def show() -> None:
        with frame(PAGE, run.name, scripts=("takeover.js",)):
            ui.html(ARMS, sanitize=False)
            with ui.element("div").classes("dt-live dt-takeover"):
                ui.html(CAMERAS, sanitize=False).classes("dt-card dt-flush")
                with ui.element("div").classes("dt-column"):
                    ui.html(CONTROL, sanitize=False).classes("dt-card dt-tight")
                    ui.html(_DRIVE, sanitize=False).classes("dt-card dt-drive-card")
                    ui.html(f"<h3>This episode</h3>{events}", sanitize=False).classes("dt-card")
                ui.html(f'<div class="dt-map">{_MAP}</div>', sanitize=False).classes(
                    "dt-card dt-across dt-tight dt-keymap"
                )


PAGE = Page(
    path="/takeover",
    title="Take over",
    icon="sports_esports",
    register=register,
    keys={
        "Space, held": "you drive; release it, and the policy continues",
        "W A S D": "move: away from the base, left, toward the base, right",
        "E Q": "up, down",
        "← →": "turn",
        "↑ ↓": "tilt",
        ", .": "roll",
        "[ ]": "choose the arm or base, if there are several; also the gamepad's d-pad, left and right",
        "1 to 9": "choose a joint of an arm without Cartesian actions; W and S, or the left stick, move it",
        "G": "gripper: open or close",
        "Shift, held": "slowly",
        "y n": "success, failure",
        "x r": "discard, reset",
        "c p k": "start, pause, acknowledge",
    },
)
