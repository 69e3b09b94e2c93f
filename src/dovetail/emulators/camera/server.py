"""An emulated network camera: MJPEG over HTTP on loopback, read by `type: video`.

    with CameraEmulator(CameraEmulatorConfig(fps=30)) as camera:
        camera.url                                     # http://127.0.0.1:PORT/video.mjpg
        camera.misbehave("freeze", seconds=3)          # see `dovetail.emulators.camera.faults`

`/video.nut` is the same stream in a container with time stamps. `POST /fault` changes its behavior from elsewhere; it needs
the token that `describe` shows.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError
from dovetail.emulators.camera.container import ContainerWriter
from dovetail.emulators.camera.faults import Fault, FaultName, FaultState, corrupted
from dovetail.emulators.camera.pictures import NUM_PICTURES, encode_jpeg, make_picture

__all__ = ["CameraEmulator", "CameraEmulatorConfig"]

_BOUNDARY = "dovetailframe"
_MAX_REQUEST_BYTES = 10_000
_FREEZE_POLL_S = 0.02


class CameraEmulatorConfig(Config):
    """A network camera on loopback."""

    BASIC: ClassVar[Collection[str]] = ("port", "size", "fps", "fault")

    port: int = Field(default=0, ge=0, le=65535)
    """TCP port on 127.0.0.1; 0: any free one."""
    size: tuple[int, int] = (640, 480)
    """Width and height of the pictures."""
    fps: float = Field(default=30.0, gt=0, le=500)
    """Frames per second."""
    quality: int = Field(default=80, ge=1, le=95)
    """Quality of the JPEG pictures."""
    fault: FaultName = "none"
    """How it misbehaves."""
    fault_after_s: float = Field(default=0.0, ge=0)
    """Seconds after the start until it misbehaves."""
    fault_s: float | None = Field(default=None, gt=0)
    """For how many seconds; null: from then on."""
    fault_amount_s: float = 3600.0
    """For `late` and `lie`: by how many seconds. `lie` below 0: the time stamps stand still."""
    seed: int = 0
    """Seed of dropped frames and random bytes."""


class CameraEmulator:
    """See the module. All connections show the same pictures at the same time."""

    Config: ClassVar[type[CameraEmulatorConfig]] = CameraEmulatorConfig

    def __init__(self, config: CameraEmulatorConfig) -> None:
        self.config = config
        self.token = secrets.token_urlsafe(16)
        self._faults = FaultState()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._pictures: list[bytes] = []
        self._small: list[bytes] = []
        self._began_ns = 0

    @property
    def url(self) -> str:
        return f"{self._address}/video.mjpg"

    @property
    def stamped_url(self) -> str:
        """The stream with time stamps."""
        return f"{self._address}/video.nut"

    def misbehave(
        self, fault: str, *, seconds: float | None = None, amount_s: float = 3600.0, after_s: float = 0.0
    ) -> None:
        """Show a fault from now on, or for some seconds. `none` ends it."""
        self._faults.set(fault, seconds=seconds, amount_s=amount_s, after_s=after_s)
        if fault == "disconnect" and self._server is not None and not after_s:
            self._server.close_connections()

    @property
    def num_streams(self) -> int:
        """Connections that are open now."""
        return 0 if self._server is None else self._server.num_connections

    def capture_ns(self, frame: int) -> int:
        """When a frame was captured, by this machine's monotonic clock."""
        return self._began_ns + round(frame * NS_PER_S / self.config.fps)

    def start(self) -> None:
        width, height = self.config.size
        self._pictures = self._encoded(width, height)
        self._small = self._encoded(max(width // 2, 16), max(height // 2, 16))
        self._server = _Server(("127.0.0.1", self.config.port), self)
        self._began_ns = time.monotonic_ns()
        if self.config.fault != "none":
            self.misbehave(
                self.config.fault,
                seconds=self.config.fault_s,
                amount_s=self.config.fault_amount_s,
                after_s=self.config.fault_after_s,
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="camera emulator")
        self._thread.start()

    def describe(self) -> Sequence[str]:
        width, height = self.config.size
        body = '{"fault": "freeze", "seconds": 3}'
        return [
            f"{self.url}  {width}x{height} at {self.config.fps:g} fps, for `type: video`",
            f"{self.stamped_url}  the same with time stamps, for `timestamps: stream`",
            f"misbehave: curl -H 'Authorization: Bearer {self.token}' -d '{body}' {self._address}/fault",
        ]

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.ending.set()
            server.shutdown()
            server.close_connections()
            server.server_close()  # waits for the threads of the connections
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _address(self) -> str:
        if self._server is None:
            raise UsageError("the emulated camera is not running: call start()")
        return f"http://127.0.0.1:{self._server.server_port}"

    def _encoded(self, width: int, height: int) -> list[bytes]:
        return [
            encode_jpeg(make_picture(number, width=width, height=height), quality=self.config.quality)
            for number in range(NUM_PICTURES)
        ]

    def stream(self, send: Callable[[bytes, int], None], ending: threading.Event) -> None:
        """Call `send(jpeg, stamp_ns)` for each frame until the connection ends."""
        rng = np.random.default_rng(self.config.seed)
        frame = self._newest_frame() + 1
        while not ending.wait(max(0.0, (self.capture_ns(frame) - time.monotonic_ns()) / NS_PER_S)):
            fault = self._faults.now
            if fault.name == "disconnect":
                return
            if fault.name == "freeze":
                while self._faults.now.name == "freeze" and not ending.wait(_FREEZE_POLL_S):
                    pass
            elif not (fault.name == "drop" and rng.random() < 0.9):
                send(*self._shown(frame, fault, rng))
            frame = max(frame + 1, self._newest_frame())  # a slow connection loses frames

    @property
    def fault(self) -> Fault:
        return self._faults.now

    def _newest_frame(self) -> int:
        return int((time.monotonic_ns() - self._began_ns) * self.config.fps / NS_PER_S)

    def _shown(self, frame: int, fault: Fault, rng: np.random.Generator) -> tuple[bytes, int]:
        number, stamp_ns = frame, self.capture_ns(frame) - self._began_ns
        if fault.name == "repeat":
            number = 0
        elif fault.name == "late":
            number = frame - round(fault.amount_s * self.config.fps)
        elif fault.name == "lie":
            stamp_ns += round(fault.amount_s * NS_PER_S)
        pictures = self._small if fault.name == "size" else self._pictures
        return corrupted(pictures[number % NUM_PICTURES], fault, rng), stamp_ns


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # `server_close` waits for them
    block_on_close = True

    def __init__(self, address: tuple[str, int], camera: CameraEmulator) -> None:
        self.camera, self.ending = camera, threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    @property
    def num_connections(self) -> int:
        with self._lock:
            return len(self._connections)

    def close_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # closed by the other side
                    continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.add(self.connection)

    def finish(self) -> None:
        self.server.remove(self.connection)
        try:
            super().finish()
        except OSError:  # the client is gone
            return

    def do_GET(self) -> None:
        camera = self.server.camera
        if camera.fault.name == "disconnect":
            self.close_connection = True
            return
        if self.path == "/video.mjpg":
            self._begin(f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
            camera.stream(self._send_part, self.server.ending)
        elif self.path == "/video.nut":
            self._begin("video/nut")
            width, height = camera.config.size
            with ContainerWriter(self.wfile.write, width=width, height=height) as writer:
                camera.stream(writer.write, self.server.ending)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path != "/fault" or not hmac.compare_digest(token.encode(), self.server.camera.token.encode()):
            self.send_error(403)
            return
        try:
            length = min(max(int(self.headers.get("Content-Length", "0")), 0), _MAX_REQUEST_BYTES)
            asked = json.loads(self.rfile.read(length))
            self.server.camera.misbehave(
                str(asked["fault"]),
                seconds=None if asked.get("seconds") is None else float(asked["seconds"]),
                amount_s=float(asked.get("amount_s", 3600.0)),
            )
        except (UsageError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.send_error(400, " ".join(str(error).split())[:200])
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """No lines on the terminal."""

    def _begin(self, content_type: str) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def _send_part(self, jpeg: bytes, stamp_ns: int) -> None:
        head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
        self.wfile.write(head.encode() + jpeg + b"\r\n")
