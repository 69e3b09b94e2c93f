"""Take over."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.handles import Handles
from dovetail.console.layout import Page, frame

__all__ = ["PAGE"]


def register(app: FastAPI, handles: Handles) -> None:
    @ui.page("/takeover")
    def show() -> None:
        with frame(PAGE, handles.run.name):
            ui.label("Take over")


PAGE = Page(path="/takeover", title="Take over", icon="sports_esports", register=register)
