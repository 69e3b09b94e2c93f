"""Learning."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from dovetail.console.handles import Handles
from dovetail.console.layout import Page, frame

__all__ = ["PAGE"]


def register(app: FastAPI, handles: Handles) -> None:
    @ui.page("/learning")
    def show() -> None:
        with frame(PAGE, handles.run.name):
            ui.label("Learning")


PAGE = Page(path="/learning", title="Learning", icon="insights", register=register)
