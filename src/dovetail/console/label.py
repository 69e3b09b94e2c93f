"""Label: episodes that wait for a person's word, one after another, by keyboard."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.handles import Handles
from dovetail.console.label_api import label_router
from dovetail.console.labelling import Labelling
from dovetail.console.layout import Page, frame, style

__all__ = ["PAGE"]


def register(app: FastAPI, handles: Handles) -> None:
    app.include_router(label_router(Labelling(handles.desk), handles.episodes))

    @ui.page("/label")
    def show() -> None:
        style("player.css")
        with frame(PAGE, handles.run.name, scripts=("label.js",)):
            ui.html('<div id="dv-label"></div>', sanitize=False)


PAGE = Page(
    path="/label",
    title="Label",
    icon="rule",
    register=register,
    keys={
        "s": "success",
        "f": "failure",
        "d": "discard: it is never learned from",
        "r": "begin a range, end it, then type its reward",
        "u": "undo",
        "n": "next; this one is left for later",
        "← →": "one frame back or on, with shift ten",
        "Home End": "first or last frame",
        "space": "play or pause",
        "a": "play each episode as it opens",
    },
)
