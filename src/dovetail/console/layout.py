"""Shared by all pages: navigation, control state, emergency stop, theme, and help for the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import unquote

from fastapi import FastAPI
from nicegui import ui
from starlette.requests import HTTPConnection

from dovetail.console.drive_control import ANONYMOUS

if TYPE_CHECKING:
    from dovetail.console.run_files import OpenRun

__all__ = ["KEYS_EVERYWHERE", "Page", "frame", "style", "user_name"]

KEYS_EVERYWHERE = {"Esc": "EMERGENCY STOP", "?": "this help", "t": "dark or light"}
_STATIC = f"/static/{version('dovetail')}"
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of the navigation; `register(app, run)` adds its routes.

    `keys` are shown in the help overlay. Alt and its number in the navigation opens it from any page.
    """

    path: str
    title: str
    icon: str  # a Material icon that NiceGUI ships
    register: Callable[[FastAPI, OpenRun], None]
    keys: Mapping[str, str] = field(default_factory=dict)


def user_name(request: HTTPConnection) -> str:
    """The name that the user entered in the header of the page. It is shown to people and proves nothing."""
    name = unquote(request.cookies.get("dovetail_name", ""))
    safe = "".join(letter for letter in name if letter.isprintable() and letter not in "<>&\"'\\;")
    return safe.strip()[:_NAME_LENGTH] or ANONYMOUS


@contextmanager
def frame(page: Page, run_name: str, *, scripts: Sequence[str] = ()) -> Iterator[None]:
    """The frame of a page; the caller builds its content inside. `scripts`: modules in `static/` that it needs.

    with frame(PAGE, run.name, scripts=("label.js",)):
        ui.label("...")
    """
    from dovetail.console.app import PAGES  # a cycle: `app` imports all pages

    ui.page_title(f"{page.title} · {run_name}")
    ui.add_head_html(f'<link rel="stylesheet" href="{_STATIC}/console.css">')
    ui.colors(primary="#1f6b65", secondary="#64748b", accent="#7c6bb0", positive="#1d7a50", negative="#b3322a")
    ui.query(".nicegui-content").classes("dt-content")
    ui.html('<a class="dt-skip" href="#dt-main">Skip to the content</a>', sanitize=False)
    with ui.element("header").classes("dt-header"):
        with ui.element("a").classes("dt-brand").props('href="/"'):
            ui.html(_LOGO, sanitize=False)
            ui.label(run_name).classes("dt-run").tooltip("the run")
        with ui.element("nav").classes("dt-nav").props('aria-label="pages"'):
            for number, other in enumerate(PAGES, start=1):
                link = ui.element("a").props(f'href="{other.path}" accesskey="{number}"').classes("dt-link")
                if other is page:
                    link.classes("dt-current").props('aria-current="page"')
                with link:
                    ui.icon(other.icon).props("aria-hidden=true")
                    ui.label(other.title)
        ui.element("div").classes("dt-grow")
        ui.html(
            '<span id="dt-control" class="dt-pill" role="status" data-control="none">…</span>', sanitize=False
        ).classes("dt-control-box")
        ui.html(_TOOLS, sanitize=False).classes("dt-tools-box")
        ui.html(_STOP, sanitize=False).classes("dt-stop-box")
    ui.html('<div id="dt-arms" class="dt-arms" role="status" hidden></div>', sanitize=False)
    with ui.element("main").classes("dt-main").props('id="dt-main" tabindex="-1"'):
        yield
    ui.html(_help(page), sanitize=False)
    for script in ("console.js", *scripts):
        ui.add_body_html(f'<script type="module" src="{_STATIC}/{script}"></script>')


def style(name: str) -> None:
    """Add one of our style sheets to this page."""
    ui.add_head_html(f'<link rel="stylesheet" href="{_STATIC}/{name}">')


_LOGO = (
    '<svg viewBox="0 0 32 32" width="26" height="26" role="img" aria-label="Dovetail">'
    '<path d="M3 5h26v9l-5 3v10H8V17l-5-3z" fill="none" stroke="currentColor" stroke-width="2.4" stroke-linejoin="round"/>'
    '<path d="M11 5l3 9h4l3-9" fill="none" stroke="currentColor" stroke-width="2.4" stroke-linejoin="round"/></svg>'
)
_TOOLS = (
    '<button id="dt-menu" class="dt-tool" aria-label="menu" aria-expanded="false" aria-controls="dt-tools">☰</button>'
    '<div id="dt-tools" class="dt-tools"><input id="dt-name" class="dt-name" maxlength="40" placeholder="your name" '
    'aria-label="your name" autocomplete="off"><button id="dt-theme" class="dt-tool" title="dark or light (t)" '
    'aria-label="dark or light">◐</button><button id="dt-help-open" class="dt-tool" title="keys (?)" '
    'aria-label="keys">?</button></div>'
)
_STOP = (
    '<button id="dt-emergency" class="dt-emergency" title="stop all arms (Esc)" aria-label="STOP all arms">'
    "<b>STOP</b><kbd>Esc</kbd></button>"
)


def _help(page: Page) -> str:
    rows = "".join(
        f"<tr><td><kbd>{_escaped(key)}</kbd></td><td>{_escaped(what)}</td></tr>"
        for keys in (page.keys, KEYS_EVERYWHERE)
        for key, what in keys.items()
    )
    return (
        '<div id="dt-help" class="dt-help" role="dialog" aria-modal="true" aria-labelledby="dt-help-title" hidden>'
        f'<div class="dt-sheet"><h2 id="dt-help-title">Keys on “{_escaped(page.title)}”</h2><table>{rows}</table>'
        '<button id="dt-help-close" class="dt-button">Close <kbd>?</kbd></button></div></div>'
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
