"""HTML that the pages Live and Take over share. `static/robot.js` fills it."""

from __future__ import annotations

from html import escape

__all__ = ["ARMS", "CAMERAS", "CONTROL", "buttons", "chart"]

ARMS = '<div id="dt-choose-arm" class="dt-choose" role="group" aria-label="arm" hidden></div>'

CAMERAS = """
<div class="dt-stage"><div id="dt-cameras" class="dt-cameras"></div>
<div id="dt-no-image" class="dt-no-image">looking for the run …</div></div>
<div class="dt-below"><div id="dt-prompt" class="dt-prompt"></div>
<div id="dt-choose-cameras" class="dt-choose" role="group" aria-label="cameras" hidden></div></div>"""

CONTROL = """
<div id="dt-in-control" class="dt-in-control" role="status" data-control="none"><b>…</b><span></span></div>
<p id="dt-progress" class="dt-progress">&nbsp;</p>"""

_EVENTS = {  # event -> icon, text, key
    "start": ("play_arrow", "Start", "c"),
    "pause": ("pause", "Pause", "p"),
    "acknowledge": ("done_all", "Acknowledge", "k"),
    "stop": ("stop", "End run", ""),
    "success": ("check", "Success", "y"),
    "failure": ("close", "Failure", "n"),
    "discard": ("delete_outline", "Discard", "x"),
    "reset": ("restart_alt", "Reset", "r"),
}
_CONFIRM = {"stop": "End the run? It saves its state and can be resumed."}


def buttons(*events: str) -> str:
    """A grid of buttons; each sends an event to the robot."""
    made = []
    for event in events:
        icon, text, key = _EVENTS[event]
        confirm = f' data-confirm="{escape(_CONFIRM[event])}"' if event in _CONFIRM else ""
        shown_key = f"<kbd>{key}</kbd>" if key else ""
        made.append(
            f'<button class="dt-button" data-event="{event}"{confirm}>'
            f'<i class="q-icon material-icons" aria-hidden="true">{icon}</i><span>{text}</span> {shown_key}</button>'
        )
    return f'<div class="dt-buttons">{"".join(made)}</div>'


def chart(title: str, curve: str, *, share: bool = False, evaluations: bool = False) -> str:
    """A card with one of the curves of the run; `evaluations` are dots with intervals in it."""
    kind = (' data-kind="share"' if share else "") + (' data-evaluations="1"' if evaluations else "")
    return f'<div class="dt-card"><h3>{escape(title)}</h3><div class="dt-chart" data-curve="{curve}"{kind}></div></div>'
