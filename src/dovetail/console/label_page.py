"""Label: episodes that wait for a person, one after another, by keyboard."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.label_api import label_router
from dovetail.console.labeling_queue import LabelingQueue
from dovetail.console.layout import Page, frame, style
from dovetail.console.run_files import OpenRun

__all__ = ["PAGE"]


def register(app: FastAPI, run: OpenRun) -> None:
    app.include_router(label_router(LabelingQueue(run.labels), run.episodes))

    @ui.page("/label")
    def show() -> None:
        style("player.css")
        with frame(PAGE, run.name, scripts=("label.js",)):
            ui.html('<div id="dv-label"></div>', sanitize=False)


PAGE = Page(
    path="/label",
    title="Label",
    icon="rule",
    register=register,
    keys={
        "s": "success",
        "f": "failure",
        "d": "discard: it is never used for training",
        "r": "start a range, end it, then type its reward",
        "u": "undo",
        "n": "next; this episode stays in the queue",
        "← →": "one frame back or forward; with Shift ten",
        "Home End": "first or last frame",
        "space": "play or pause",
        "a": "play each episode when it opens",
    },
)
