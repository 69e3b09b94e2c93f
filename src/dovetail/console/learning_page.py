"""Learning: curves, the published versions of the policy with their success, and a button to pin one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from nicegui import run as threads
from nicegui import ui

from dovetail.console.layout import Page, frame
from dovetail.console.run_files import OpenRun, Version
from dovetail.console.run_history import RunHistory, thinned
from dovetail.console.widgets import chart
from dovetail.core.errors import DovetailError

__all__ = ["PAGE"]

_REFRESH_S = 2.0


def register(app: FastAPI, run: OpenRun) -> None:
    history = RunHistory(run.files)

    @app.get("/api/learner")
    async def learner() -> dict[str, Any]:
        curves = await threads.io_bound(run.files.curves)
        return {
            name: thinned([(step, value) for step, value in points if math.isfinite(value)])
            for name, points in (curves or {}).items()
        }

    @ui.page("/learning")
    def show() -> None:
        with frame(PAGE, run.name, scripts=("learning.js",)):
            curves = (
                chart("Success: online episodes, and evaluations with 95 % intervals", "success", share=True),
                chart("Return", "return"),
            )
            ui.html("".join(curves), sanitize=False).classes("dt-two")
            with ui.element("div").classes("dt-live"):
                versions = _Versions(run, history)
                ui.html(
                    '<h3>Metrics of the learner</h3><div id="dt-learner" class="dt-small-charts"></div>',
                    sanitize=False,
                ).classes("dt-card")
            versions.refresh()
            ui.timer(_REFRESH_S, versions.refresh, immediate=False)


class _Versions:
    """The card with the table; drawn again only after a change."""

    def __init__(self, run: OpenRun, history: RunHistory) -> None:
        self._run, self._history = run, history
        self._drawn: object = None
        with ui.element("div").classes("dt-card"):
            ui.html("<h3>Versions of the policy</h3>", sanitize=False)
            self._note = ui.label().classes("dt-note")
            self._table = ui.element("div").classes("dt-versions")
            self._checkpoints = ui.label().classes("dt-quiet dt-foot")

    def refresh(self) -> None:
        self._history.read()
        try:
            versions, pinned = list(self._run.weights.versions()), self._run.weights.pinned()
        except DovetailError as error:
            self._note.set_text(str(error))
            return
        now_s, autonomous = time.time(), self._history.by_version()
        rows = [
            (one.number, _ago(now_s - one.published_s), *self._success(one.number, autonomous.get(one.number, [])))
            for one in reversed(versions)
        ]
        drawn = (rows, pinned)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._note.set_text(
            f"Pinned to version {pinned}: the robot uses it until you unpin it."
            if pinned is not None
            else "The robot uses the newest version."
        )
        self._note.classes(
            add="dt-pinned" if pinned is not None else "", remove="" if pinned is not None else "dt-pinned"
        )
        self._table.clear()
        with self._table:
            for version, row in zip(reversed(versions), rows, strict=True):
                self._row(version, row, pinned)
            if not versions:
                ui.label("No version has been published yet.").classes("dt-empty")
        self._checkpoints.set_text(self._checkpoint_text())

    def _row(self, version: Version, row: tuple[Any, ...], pinned: int | None) -> None:
        number, ago, evaluation, online = row
        is_pinned = pinned == number
        with (
            ui.element("div")
            .classes("dt-version" + (" dt-chosen" if is_pinned else ""))
            .props(f"data-version={number}")
        ):
            with ui.element("div"):
                ui.label(f"v{number}").classes("dt-number")
                ui.label(f"{ago} · {version.num_bytes / 1e6:.1f} MB").classes("dt-quiet")
            with ui.element("div"):
                ui.label(evaluation or "not evaluated").classes("" if evaluation else "dt-quiet")
                ui.label(online).classes("dt-quiet")
            button = ui.element("button").classes("dt-button dt-pin")
            with button:
                ui.icon("push_pin")
                ui.label("Unpin" if is_pinned else "Pin")
            button.on("click", self._pin(None if is_pinned else number))

    def _pin(self, version: int | None) -> Callable[[], None]:
        def pin() -> None:
            try:
                self._run.weights.pin(version)
            except DovetailError as error:
                ui.notify(str(error), type="negative")
                return
            message = (
                "Unpinned: the robot uses the newest version"
                if version is None
                else f"Pinned to version {version}"
            )
            ui.notify(message, type="positive")
            self.refresh()

        return pin

    def _success(self, number: int, autonomous: list[float]) -> tuple[str, str]:
        """Success of a version in its evaluation, and in online episodes without help."""
        rated = [one for one in self._history.evaluations if one.get("version") == number]
        evaluation = (
            f"{100 * rated[-1]['rate']:.0f} % of {rated[-1]['episodes']} evaluation episodes" if rated else ""
        )
        online = (
            f"{sum(autonomous):.0f} of {len(autonomous)} online episodes without help"
            if autonomous
            else "no online episodes without help yet"
        )
        return evaluation, online

    def _checkpoint_text(self) -> str:
        last = [one for one in self._history.checkpoints if one["event"] == "checkpoint"][-1:]
        best = [one for one in self._history.checkpoints if one["event"] == "best checkpoint"][-1:]
        shown = [f"checkpoint at {one.get('env_steps', 0)} steps" for one in last]
        shown += [f"best: {100 * one.get('success', 0):.0f} % by {one.get('by', '')}" for one in best]
        return " · ".join(shown)


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 172800 else f"{seconds / 86400:.0f} days ago"


PAGE = Page(path="/learning", title="Learning", icon="insights", register=register)
