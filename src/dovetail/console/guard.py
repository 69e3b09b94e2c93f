"""The door. Every request, websockets and NiceGUI's own paths too, needs the token, and must come from our own pages.

The token arrives once in the address (`/?token=...`), is exchanged for a cookie that scripts cannot read, and leaves the
address by a redirect. Tools may send `Authorization: Bearer TOKEN` instead. A page of somebody else's that makes the
browser call us fails at `Origin`; a name of theirs that resolves to this machine fails at `Host`.
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

__all__ = ["MAX_BODY", "Guard"]

MAX_BODY = 1 << 20  # bytes of a request; nobody sends us more than a label
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
<p>Open the whole address that <code>dovetail console</code> printed, the part after <code>?token=</code> too.</p>"""


class Guard:
    """Wraps the application. `is_local`: it listens on this machine only, so only its own names are ours."""

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, is_local: bool, names: tuple[str, ...] = ()
    ) -> None:
        self.app = app  # under this name NiceGUI looks for itself
        self._token = token.encode()
        self._pass = hmac.new(self._token, b"dovetail console", hashlib.sha256).hexdigest().encode()
        self._cookie = f"dovetail_{port}"  # browsers keep one jar for all ports of a machine
        self._is_local = is_local
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_ours(headers):
            await _refuse(scope, send, 403, "this address or page is not this console's own\n")
            return
        if scope["type"] == "http" and scope["method"] == "GET" and await self._exchange(scope, send):
            return
        if not self._knows_token(headers):
            wants_page = "text/html" in headers.get("accept", "")
            await _refuse(
                scope, send, 401, _REFUSED if wants_page else "the console's token is missing or wrong\n"
            )
            return
        if not _is_small(headers):
            await _refuse(scope, send, 413, f"a request may have {MAX_BODY} bytes\n")
            return
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
            return
        body = _Body(receive)
        try:
            await self.app(scope, body, _with_safe_headers(send))
        except RuntimeError:
            if not body.is_over:  # NiceGUI's middleware fails where a browser has left before its answer was ready
                raise

    def _is_ours(self, headers: Headers) -> bool:
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

    async def _exchange(self, scope: Scope, send: Send) -> bool:
        """Answer a request that carries the token in its address; returns whether it did."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not given:
            return False
        if not hmac.compare_digest(given[-1].encode(), self._token):
            await _refuse(scope, send, 401, _REFUSED)
            return True
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + quote(scope["path"].lstrip("/\\"))  # never `//elsewhere`
        cookie = f"{self._cookie}={self._pass.decode()}; Path=/; HttpOnly; SameSite=Strict"
        where = f"{path}?{rest}" if rest else path
        kept = {"set-cookie": cookie, "cache-control": "no-store"}
        if Headers(scope=scope).get("sec-fetch-site", "none") in ("none", "same-origin"):
            await _answer(send, 303, "", {**kept, "location": where})
        else:  # along a redirect that began on another page, the browser would not show us the cookie
            await _answer(
                send, 200, f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(where)}">', kept
            )
        return True

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode(), self._token)
        return hmac.compare_digest(_cookies(headers).get(self._cookie, "").encode(), self._pass)


def _host_name(host: str) -> str:
    """Without the port: a forwarded one is another than ours, and no matter."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4000 + status})  # before it is accepted: a plain 403
        return
    await _answer(send, status, text, {"cache-control": "no-store"})


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
    return declared.isdecimal() and len(declared) < 12 and int(declared) <= MAX_BODY


class _Body:
    """Of a request. One of undeclared length that grows too long ends as if its sender had gone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._num_bytes = 0
        self.is_over = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > MAX_BODY:
            message = {"type": "http.disconnect"}
        self.is_over = self.is_over or message["type"] == "http.disconnect"
        return message


def _with_safe_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SAFE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped
