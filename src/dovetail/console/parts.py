"""Pieces of pages that Live and Take over share. `static/robot.js` brings them to life."""

from __future__ import annotations

from html import escape

__all__ = ["CAMERAS", "CONTROL", "buttons", "chart"]

CAMERAS = """
<div class="dt-stage"><div id="dt-cameras" class="dt-cameras"></div>
<div id="dt-dark" class="dt-dark">looking for the run …</div><div id="dt-prompt" class="dt-prompt"></div></div>"""

CONTROL = """
<div id="dt-who" class="dt-who" data-control="none"><b>…</b><span></span></div>
<p id="dt-where" class="dt-where">&nbsp;</p>"""

_EVENTS = {  # what a person says: icon, text, key
    "start": ("play_arrow", "Start", "c"),
    "pause": ("pause", "Pause", "p"),
    "acknowledge": ("done_all", "Acknowledge", "k"),
    "stop": ("stop", "End run", ""),
    "success": ("check", "Success", "y"),
    "failure": ("close", "Failure", "n"),
    "discard": ("delete_outline", "Discard", "x"),
    "reset": ("restart_alt", "Reset", "r"),
}
_SURE = {"stop": "End the run? It saves what it has, and can be resumed."}


def buttons(*events: str) -> str:
    """A grid of buttons, each of which says something to the robot."""
    made = []
    for event in events:
        icon, text, key = _EVENTS[event]
        sure = f' data-sure="{escape(_SURE[event])}"' if event in _SURE else ""
        shown_key = f"<kbd>{key}</kbd>" if key else ""
        made.append(
            f'<button class="dt-button" data-event="{event}"{sure}>'
            f'<i class="q-icon material-icons">{icon}</i>{text} {shown_key}</button>'
        )
    return f'<div class="dt-buttons">{"".join(made)}</div>'


def chart(title: str, curve: str, *, share: bool = False) -> str:
    """A card with one of the run's curves."""
    kind = ' data-kind="share"' if share else ""
    return f'<div class="dt-card"><h3>{escape(title)}</h3><div class="dt-chart" data-curve="{curve}"{kind}></div></div>'
