"""Episodes: search, play, label and download everything that was recorded."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui

from dovetail.console.episode_api import EpisodeApi
from dovetail.console.layout import Page, frame, style
from dovetail.console.run_files import OpenRun

__all__ = ["PAGE"]


def register(app: FastAPI, run: OpenRun) -> None:
    api = EpisodeApi(run.episodes, run.labels)
    app.include_router(api.router())
    nicegui_app.on_shutdown(api.close)

    @ui.page("/episodes")
    def show() -> None:
        style("player.css")
        with frame(PAGE, run.name, scripts=("episodes.js",)):
            ui.html('<div id="dv-episodes"></div>', sanitize=False)


PAGE = Page(
    path="/episodes",
    title="Episodes",
    icon="video_library",
    register=register,
    keys={
        "← →": "one frame back or forward; with Shift ten",
        "Home End": "first or last frame",
        "space": "play or pause",
        "↑ ↓": "previous or next episode",
        "l": "label it",
        "q": "close it",
        "/": "search",
    },
)
