"""Access control. Every request, including websockets and NiceGUI's own paths, needs the token and must come from our pages.

The token is once in the address (`/?token=...`). It is exchanged for a cookie that scripts cannot read, and a redirect
removes it from the address. Tools may send `Authorization: Bearer TOKEN` instead. Requests of other websites are refused by
their `Origin`, foreign host names that resolve to this machine by their `Host`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.core.unproven_connections import UnprovenConnections

__all__ = ["MAX_BODY_BYTES", "AccessGuard"]

MAX_BODY_BYTES = 1 << 20  # of a request; the largest is a label
_MAX_DISCARDED_BYTES = 1 << 16
MAX_UNPROVEN = 512  # connections that have not shown the token
MAX_UNPROVEN_PER_ADDRESS = 128
_SAFE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; worker-src 'self' blob:; "
        "frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_REFUSED = """<!doctype html><meta charset="utf-8"><title>Dovetail</title>
<style>body{font:16px system-ui;max-width:34em;margin:18vh auto;padding:0 1em;color:#4b5563;background:#f6f7f9}
h1{color:#111827;font-size:1.3em}code{background:#e5e7eb;padding:.1em .35em;border-radius:4px}</style>
<h1>This console needs its token</h1>
<p>Open the whole address that <code>dovetail console</code> printed, including the part after <code>?token=</code>.</p>"""


class AccessGuard:
    """Wraps the application. `is_local`: it listens on this machine only, so only local host names are accepted."""

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, is_local: bool, names: tuple[str, ...] = ()
    ) -> None:
        self.app = app  # NiceGUI finds itself under this name
        self._token = token.encode()
        self._cookie_value = hmac.new(self._token, b"dovetail console", hashlib.sha256).hexdigest().encode()
        self._cookie = f"dovetail_{port}"  # browsers share cookies between the ports of a host
        self._is_local = is_local
        self._names = {"localhost", *(name.lower() for name in names)}
        self.unproven = UnprovenConnections(max_total=MAX_UNPROVEN, max_per_address=MAX_UNPROVEN_PER_ADDRESS)
        """By the address of the client. The server adds connections; the guard removes those that show the token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_same_origin(headers):
            await _refuse(
                scope, receive, send, 403, "the Host or Origin of this request does not belong to this console\n"
            )
            return
        if scope["type"] == "http" and scope["method"] == "GET" and await self._exchange(scope, receive, send):
            return
        if not self._has_token(headers):
            wants_page = "text/html" in headers.get("accept", "")
            await _refuse(
                scope, receive, send, 401, _REFUSED if wants_page else "the console's token is missing or wrong\n"
            )
            return
        self.unproven.remove(scope.get("client"))
        if scope["type"] == "http" and not _is_small(headers):
            await _answer(send, 413, f"a request may have at most {MAX_BODY_BYTES} bytes\n", {})
            return
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
            return
        body = _Body(receive)
        try:
            await self.app(scope, body, _with_safe_headers(send))
        except RuntimeError:
            if (
                not body.has_ended
            ):  # NiceGUI's middleware fails if the browser disconnects before the answer is ready
                raise

    def _is_same_origin(self, headers: Headers) -> bool:
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return False
        name = _host_name(host)
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request with the token in its address; returns whether it had one."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not given:
            return False
        if not hmac.compare_digest(given[-1].encode(), self._token):
            await _refuse(scope, receive, send, 401, _REFUSED)
            return True
        self.unproven.remove(scope.get("client"))
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + quote(scope["path"].lstrip("/\\"))  # never `//other-host`
        cookie = f"{self._cookie}={self._cookie_value.decode()}; Path=/; HttpOnly; SameSite=Strict"
        where = f"{path}?{rest}" if rest else path
        headers = {"set-cookie": cookie, "cache-control": "no-store"}
        if Headers(scope=scope).get("sec-fetch-site", "none") in ("none", "same-origin"):
            await _answer(send, 303, "", {**headers, "location": where})
        else:  # after a redirect from another website, the browser would not send the cookie
            await _answer(
                send, 200, f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(where)}">', headers
            )
        return True

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode(), self._token)
        return hmac.compare_digest(_cookies(headers).get(self._cookie, "").encode(), self._cookie_value)


def _host_name(host: str) -> str:
    """Without the port, which differs from ours if it is forwarded."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        # before it is accepted, this is an HTTP 403
        await send({"type": "websocket.close", "code": 4000 + status})
        return
    await _discard_body(receive)
    await _answer(send, status, text, {"cache-control": "no-store", "connection": "close"})


async def _discard_body(receive: Receive) -> None:
    """Read what was sent with a refused request, but little: unread data would reset the connection before the answer."""
    num_bytes, more = 0, True
    while more and num_bytes < _MAX_DISCARDED_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)


async def _answer(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    kind = "text/html" if text.startswith("<") else "text/plain"
    given = {
        **_SAFE_HEADERS,
        **headers,
        "content-type": f"{kind}; charset=utf-8",
        "content-length": str(len(body)),
    }
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _is_small(headers: Headers) -> bool:
    declared = headers.get("content-length", "0")
    return declared.isdecimal() and len(declared) < 12 and int(declared) <= MAX_BODY_BYTES


class _Body:
    """The body of a request. One that exceeds the limit without declaring its length ends like a disconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._num_bytes = 0
        self.has_ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > MAX_BODY_BYTES:
            message = {"type": "http.disconnect"}
        self.has_ended = self.has_ended or message["type"] == "http.disconnect"
        return message


def _with_safe_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SAFE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped
