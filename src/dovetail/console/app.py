"""The console as one ASGI application. NiceGUI keeps its own in a module, so a process can have one console."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from nicegui import app as nicegui_app
from nicegui import ui

from dovetail.console import episodes, label, learning, live, takeover, wire
from dovetail.console.guard import Guard
from dovetail.console.handles import Handles
from dovetail.console.layout import Page

__all__ = ["PAGES", "make_app"]

PAGES: tuple[Page, ...] = (live.PAGE, takeover.PAGE, label.PAGE, episodes.PAGE, learning.PAGE)


def make_app(
    handles: Handles, *, token: str, port: int, is_local: bool = True, names: tuple[str, ...] = ()
) -> Guard:
    """All pages behind the guard. `port` is where it will listen; `names` are the machine's, where others may reach it."""
    app = wire.make(handles)
    app.mount(f"/static/{version('dovetail')}", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_exception_handler(RequestValidationError, _not_understood)
    for page in PAGES:
        page.register(app, handles)
    nicegui_app.config.endpoint_documentation = "none"
    ui.run_with(
        app,
        title="Dovetail",
        dark=None,  # as the system has it, until somebody says otherwise
        tailwind=False,  # our own styles and Quasar's do; it would be compiled in the browser
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    return Guard(app, token=token, port=port, is_local=is_local, names=names)


def _not_understood(_: Request, error: Exception) -> JSONResponse:
    """In one line, and without what was sent: that may be a NaN, which no JSON can say back."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return JSONResponse({"detail": f"{where}: {first['msg']}"}, status_code=422)
