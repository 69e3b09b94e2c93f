"""`dovetail console`: find the run, serve its pages, print the address."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import stat
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from html import escape
from pathlib import Path

# NiceGUI reads and stores data of pages in a folder; we store none, so it gets a path that does not exist. Another user
# could make a folder of a fixed name in /tmp first, so the name is random
os.environ.setdefault(
    "NICEGUI_STORAGE_PATH", os.path.join(tempfile.gettempdir(), f"dovetail-console-{secrets.token_hex(16)}")
)

from dovetail.api.names import find_run
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import say
from dovetail.console.app import make_app
from dovetail.console.run_files import ConsoleLock, OpenRun
from dovetail.console.server import listen, serve
from dovetail.core.errors import UsageError

__all__ = ["console"]

_MIN_TOKEN_CHARS = 16


def console(
    run: str, *, host: str, port: int, token_file: Path | None, open_browser: bool, runs_dir: Path
) -> None:
    path = find_run(run, runs_dir)
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    lock = ConsoleLock(path)
    lock.acquire()
    bound = listen(host, port)
    is_local = _is_local(host)
    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{bound.getsockname()[1]}/"
    app = make_app(
        OpenRun(path),
        token=token,
        port=bound.getsockname()[1],
        is_local=is_local,
        names=() if is_local else (socket.gethostname(), socket.getfqdn()),
    )
    if not is_local:
        say(
            f"warning: {host} is reachable from other machines, unencrypted: anyone with the token can move the arm"
        )

    def ready() -> None:
        lock.write_address(address)
        say(f"console at {address}?token={token}")
        if open_browser and _has_screen():
            pages.enter_context(_opened(f"{address}?token={token}"))

    with contextlib.ExitStack() as pages, StopFlag() as stop:
        serve(app, bound, ready=ready, should_stop=stop)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_token(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"token file {path} is readable by other users: run chmod 600 {path}")
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read token file {path}: {error}") from error
    if len(token) < _MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"token file {path} has no valid token: expected one line of {_MIN_TOKEN_CHARS} or more printable characters"
        )
    return token


def _has_screen() -> bool:
    return sys.stdout.isatty() and (
        sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ})
    )


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the address through a private file: other users can see the arguments of a browser process."""
    with tempfile.TemporaryDirectory(prefix="dovetail-console-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0;url={escape(address)}">', "utf-8")
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(page.as_uri())
        yield
