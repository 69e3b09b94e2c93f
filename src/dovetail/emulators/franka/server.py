"""An HTTP server on loopback: POST only, as the original, with spoiled answers on request."""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable

from dovetail.emulators.franka.misbehavior import Misbehavior, Rule, spoil
from dovetail.robots.drivers.franka.emulator_token import HEADER

__all__ = ["PoseServer"]

_MAX_BODY = 1 << 20
_REASONS = {
    200: "OK",
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    405: "METHOD NOT ALLOWED",
    500: "INTERNAL SERVER ERROR",
}
_TRICKLE_S = 0.05
_SPOILS_BODY = ("garbage", "nan", "wrong_size", "missing", "huge")

Call = Callable[[str, bytes, str | None], tuple[int, bytes]]


class PoseServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """`call(path, body, token)` answers requests. `close` closes all connections and waits for their threads."""

    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], call: Call, rules: Misbehavior, *, keep_alive: bool) -> None:
        self.call, self.rules, self.keep_alive = call, rules, keep_alive
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="franka-http"
        )

    def server_bind(self) -> None:
        """Without the look-up of a host name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no event."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PoseServer
    disable_nagle_algorithm = True
    rbufsize = -1

    def setup(self) -> None:
        self.protocol_version = "HTTP/1.1" if self.server.keep_alive else "HTTP/1.0"
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= _MAX_BODY:
            self.close_connection = True
            return
        body = self.rfile.read(length)
        path = self.path
        rule = None if path.startswith("/emulator/") else self.server.rules.take(path)
        if rule is not None and not self._begin_to_misbehave(rule):
            return
        status, answer = self.server.call(path, body, self.headers.get(HEADER))
        if rule is not None and rule.kind == "error":
            status, answer = 500, b"Internal Server Error"
        if rule is not None and rule.kind in _SPOILS_BODY:
            answer = spoil(rule.kind, answer)
        self._answer(status, answer, rule.kind if rule is not None else "")

    def do_GET(self) -> None:
        self._answer(405, b"Method Not Allowed", "")

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _begin_to_misbehave(self, rule: Rule) -> bool:
        """Whether the request is to be answered at all."""
        if rule.kind == "delay":
            return not self.server.closing.wait(rule.seconds)
        if rule.kind == "silent":
            self.server.closing.wait(60.0)
        if rule.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rule.kind in ("drop", "reset", "silent"):
            self.close_connection = True
            return False
        return True

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        head = (
            f"{self.protocol_version} {status} {_REASONS.get(status, '')}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: {'keep-alive' if self.server.keep_alive else 'close'}\r\n\r\n"
        ).encode()
        whole = head + body
        try:
            if kind == "half":
                self.wfile.write(whole[: len(head) + len(body) // 2])
                self.close_connection = True
            elif kind == "trickle":
                for index in range(len(whole)):
                    if self.server.closing.is_set():
                        break
                    self.wfile.write(whole[index : index + 1])
                    time.sleep(_TRICKLE_S)
            else:
                self.wfile.write(whole)
        except OSError:
            self.close_connection = True
