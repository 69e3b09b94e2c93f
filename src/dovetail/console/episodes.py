"""Episodes: all that was recorded, to look through, play, judge anew and take home."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui

from dovetail.console.episode_api import EpisodeApi
from dovetail.console.handles import Handles
from dovetail.console.layout import Page, frame, style

__all__ = ["PAGE"]


def register(app: FastAPI, handles: Handles) -> None:
    api = EpisodeApi(handles.episodes, handles.desk, handles.downloads)
    app.include_router(api.router())
    nicegui_app.on_shutdown(api.close)

    @ui.page("/episodes")
    def show() -> None:
        style("player.css")
        with frame(PAGE, handles.run.name, scripts=("episodes.js",)):
            ui.html('<div id="dv-episodes"></div>', sanitize=False)


PAGE = Page(
    path="/episodes",
    title="Episodes",
    icon="video_library",
    register=register,
    keys={
        "← →": "one frame back or on, with shift ten",
        "Home End": "first or last frame",
        "space": "play or pause",
        "↑ ↓": "the episode before or after",
        "l": "label it by hand",
        "q": "close it",
        "/": "search",
    },
)
