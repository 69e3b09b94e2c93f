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

from dovetail.console import episodes_page, label_page, learning_page, live_api, live_page, takeover_page
from dovetail.console.access_guard import AccessGuard
from dovetail.console.layout import Page
from dovetail.console.run_files import OpenRun
from dovetail.core.errors import shown

__all__ = ["PAGES", "make_app"]

PAGES: tuple[Page, ...] = (
    live_page.PAGE,
    takeover_page.PAGE,
    label_page.PAGE,
    episodes_page.PAGE,
    learning_page.PAGE,
)


def make_app(
    run: OpenRun, *, token: str, port: int, is_local: bool = True, names: tuple[str, ...] = ()
) -> AccessGuard:
    """All pages behind the guard. `port` is where it will listen; `names` are host names under which others reach it."""
    app = live_api.make_app(run)
    app.mount(f"/static/{version('dovetail')}", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_exception_handler(RequestValidationError, _invalid_request)
    for page in PAGES:
        page.register(app, run)
    nicegui_app.config.endpoint_documentation = "none"
    ui.run_with(
        app,
        title="Dovetail",
        viewport="width=device-width, initial-scale=1, viewport-fit=cover, interactive-widget=resizes-content",
        dark=None,  # the system's setting, until the user changes it
        tailwind=False,  # not needed, and it would be compiled in the browser
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    return AccessGuard(app, token=token, port=port, is_local=is_local, names=names)


def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    """The error in one line, without the value that was sent: it may be NaN, which JSON cannot represent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = shown(".".join(str(part) for part in first["loc"]))  # it may have a key that was sent
    return JSONResponse({"detail": f"{where}: {first['msg']}"}, status_code=422)
