"""Learning: curves, the published versions of the policy with their success, and a button to pin one."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException
from nicegui import ui

from dovetail.console.deployment_api import add_deployment
from dovetail.console.layout import Page, frame
from dovetail.console.run_files import OpenRun, Version
from dovetail.console.run_history import thinned
from dovetail.console.threads import in_thread
from dovetail.console.widgets import chart
from dovetail.core.figures import short

__all__ = ["PAGE"]

_REFRESH_S = 2.0


def register(app: FastAPI, run: OpenRun) -> None:
    add_deployment(app, run.deployment)

    @app.get("/api/learner")
    async def learner() -> dict[str, Any]:
        curves = await in_thread(run.files.curves)
        return {
            name: thinned([(step, value) for step, value in points if math.isfinite(value)])
            for name, points in curves.items()
        }

    @ui.page("/learning")
    def show() -> None:
        with frame(PAGE, run.name, scripts=("learning.js", "deployment.js")):
            ui.html(
                '<h3>Deployment: new weights act only if they are not worse</h3><div id="dt-deployment"></div>',
                sanitize=False,
            ).classes("dt-card").props("hidden")
            curves = (
                chart(
                    "Success: online episodes; evaluations with 95 % intervals",
                    "success",
                    share=True,
                    evaluations=True,
                ),
                chart("Return: online episodes; evaluations with 95 % intervals", "return", evaluations=True),
                chart(
                    "Cycle time (s): online successes; evaluations with quartiles",
                    "cycle_time_s",
                    evaluations=True,
                ),
                chart("Share of steps by an operator", "human_share", share=True),
            )
            ui.html("".join(curves), sanitize=False).classes("dt-two")
            ui.html(
                '<h3>Evaluations, the newest first</h3><div id="dt-evaluations" class="dt-scroll" tabindex="0" '
                'role="region" aria-label="evaluations"></div>',
                sanitize=False,
            ).classes("dt-card")
            with ui.element("div").classes("dt-live"):
                versions = _Versions(run)
                ui.html(
                    '<h3>Metrics of the learner</h3><div id="dt-learner" class="dt-small-charts"></div>',
                    sanitize=False,
                ).classes("dt-card")
            ui.timer(_REFRESH_S, versions.refresh)


class _Versions:
    """The card with the table; drawn again only after a change. Files are read in a thread."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._drawn: object = None
        with ui.element("div").classes("dt-card"):
            ui.html("<h3>Versions of the policy</h3>", sanitize=False)
            self._note = ui.label().classes("dt-note")
            self._table = ui.element("div").classes("dt-versions")
            self._checkpoints = ui.label().classes("dt-quiet dt-foot")

    async def refresh(self) -> None:
        try:
            versions, pinned, history, has_gate = await in_thread(self._read)
        except HTTPException as error:
            self._note.set_text(str(error.detail))
            return
        self._draw(versions, pinned, history, has_gate=has_gate)

    def _read(self) -> tuple[Sequence[Version], int | None, Mapping[str, Any], bool]:
        run = self._run
        return run.weights.versions(), run.weights.pinned(), run.history.summary(), run.deployment.has_gate()

    def _draw(
        self, versions: Sequence[Version], pinned: int | None, history: Mapping[str, Any], *, has_gate: bool
    ) -> None:
        now_s = time.time()
        rows = [
            (one.number, _ago(now_s - one.published_s), *_success(history, one.number))
            for one in reversed(versions)
        ]
        drawn = (rows, pinned, has_gate)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._note.set_text(
            f"Version {pinned} is deployed: the gate decides when a newer one acts."
            if has_gate
            else f"Pinned to version {pinned}: the robot uses it until you unpin it."
            if pinned is not None
            else "The robot uses the newest version."
        )
        self._note.classes(
            add="dt-pinned" if pinned is not None else "", remove="" if pinned is not None else "dt-pinned"
        )
        self._table.clear()
        with self._table:
            for version, row in zip(reversed(versions), rows, strict=True):
                self._row(version, row, pinned, has_gate=has_gate)
            if not versions:
                ui.label("No version has been published yet.").classes("dt-empty")
        self._checkpoints.set_text(_checkpoint_text(history["checkpoints"]))

    def _row(self, version: Version, row: tuple[Any, ...], pinned: int | None, *, has_gate: bool) -> None:
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
            if has_gate:  # a pin would bypass it
                return
            button = ui.element("button").classes("dt-button dt-pin")
            with button:
                ui.icon("push_pin")
                ui.label("Unpin" if is_pinned else "Pin")
            button.on("click", self._pin(None if is_pinned else number))

    def _pin(self, version: int | None) -> Callable[[], Awaitable[None]]:
        async def pin() -> None:
            try:
                if await in_thread(self._run.deployment.has_gate):
                    raise HTTPException(409, "this run has a gate: approve or roll back instead")
                await in_thread(lambda: self._run.weights.pin(version), time_limit_s=None)
            except HTTPException as error:
                ui.notify(str(error.detail), type="negative")
                return
            message = (
                "Unpinned: the robot uses the newest version"
                if version is None
                else f"Pinned to version {version}"
            )
            ui.notify(message, type="positive")
            await self.refresh()

        return pin


def _success(history: Mapping[str, Any], number: int) -> tuple[str, str]:
    """Success, or else the return, of a version in its evaluation; and its success in online episodes without help."""
    rated, autonomous = history["rated"].get(number) or {}, history["by_version"].get(number, [])
    evaluation = ""
    if (rate := _number(rated, "rate")) is not None:
        evaluation = f"{100 * rate:.0f} % of {rated.get('episodes')} evaluation episodes"
        if details := _details(rated):
            evaluation += f", {details}"
    elif (mean := _number(rated.get("return"), "mean")) is not None:
        return f"return {short(mean)} in {rated.get('episodes')} evaluation episodes", ""
    online = (
        f"{sum(autonomous):.0f} of {len(autonomous)} online episodes without help"
        if autonomous
        else "no online episodes without help yet"
    )
    return evaluation, online


def _details(rated: Mapping[str, Any]) -> str:
    """Cycle time and throughput of an evaluation, as far as they are stored."""
    cycle_s, per_minute = _number(rated.get("cycle_time_s"), "median"), _number(rated, "per_minute")
    with_resets = _number(rated, "per_minute_with_resets")
    parts = [] if cycle_s is None else [f"cycle time {cycle_s:.1f} s"]
    if per_minute is not None:
        resets = "" if with_resets is None else f" ({with_resets:.1f} with resets)"
        parts.append(f"{per_minute:.1f} successes per minute{resets}")
    return ", ".join(parts)


def _number(facts: Any, name: str) -> float | None:
    """A number of an event, which another program may have changed."""
    value = facts.get(name) if isinstance(facts, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _checkpoint_text(newest: Mapping[str, Mapping[str, Any]]) -> str:
    last, best, shown = newest.get("checkpoint"), newest.get("best checkpoint"), []
    if last is not None:
        shown.append(f"checkpoint at {last.get('env_steps', 0)} steps")
    if best is not None and (rate := _number(best, "success")) is not None:
        shown.append(f"best: {100 * rate:.0f} % by {best.get('by', '')}")
    elif best is not None and (value := _number(best, "return")) is not None:
        shown.append(f"best: return {short(value)} by {best.get('by', '')}")
    return " · ".join(shown)


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 172800 else f"{seconds / 86400:.0f} days ago"


PAGE = Page(path="/learning", title="Learning", icon="insights", register=register)
