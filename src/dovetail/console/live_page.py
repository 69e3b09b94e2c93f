"""Live: the robot's cameras, who is in control, learning curves, and buttons to start, pause and stop."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.layout import Page, frame
from dovetail.console.run_files import OpenRun
from dovetail.console.widgets import ARMS, CAMERAS, CONTROL, buttons, chart

__all__ = ["PAGE"]


def register(app: FastAPI, run: OpenRun) -> None:
    @ui.page("/")
    def show() -> None:
        with frame(PAGE, run.name, scripts=("live.js",)):
            ui.html(ARMS, sanitize=False)
            with ui.element("div").classes("dt-live"):
                ui.html(CAMERAS, sanitize=False).classes("dt-card dt-flush")
                with ui.element("div").classes("dt-column"):
                    events = buttons("start", "pause", "acknowledge", "stop")
                    ui.html(CONTROL + events, sanitize=False).classes("dt-card")
                    _card("Last 20 online episodes", "dt-figures", "dt-stats dt-figures")
                    _card("Control loop", "dt-health", "dt-stats")
                    _card("Coach", "dt-coach", "dt-coach").classes("dt-grow")
            curves = (
                chart("Success, last 20 episodes", "success", share=True, evaluations=True),
                chart("Return, last 20 episodes", "return", evaluations=True),
                chart("Share of steps by an operator", "human_share", share=True),
            )
            ui.html("".join(curves), sanitize=False).classes("dt-three")
            ui.html(_ROLES, sanitize=False)


_ROLES = """<div id="dt-roles" class="dt-card" hidden><h3>Roles</h3><div id="dt-pipeline" class="dt-stats"></div>
<div id="dt-acknowledge" class="dt-buttons"></div>
<div class="dt-scroll"><table class="dt-roles"><thead></thead><tbody></tbody></table></div></div>"""


def _card(title: str, name: str, kind: str) -> ui.html:
    return ui.html(f'<h3>{title}</h3><div id="{name}" class="{kind}"></div>', sanitize=False).classes("dt-card")


PAGE = Page(
    path="/",
    title="Live",
    icon="videocam",
    register=register,
    keys={"c": "start or continue", "p": "pause", "k": "acknowledge a fault"},
)
