"""The server of one robot. Each connection has a thread, so that STOP is answered while another call of the robot hangs.

    request             answer
    observe             observation: the arrays of the spec; pictures only if they are new to this connection
    send (action)       sent: the executed action. The first command makes its connection the controller
    stop                stopped
    ping                pong

Each answer has the times at which the request came and the answer left, by the clock of this computer. Only one connection
controls the robot. The robot stops if its connection is lost, and if no command comes for `watchdog_s`.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from typing import Any

import numpy as np

from .handshake import answer_client, check_token
from .served_robot import Refused, Sample, ServedRobot
from .wire import Link, Message, WireError

__all__ = ["RobotServer", "Session"]

HANDSHAKE_S = 3.0
TRANSFER_S = 5.0  # for a request to arrive once it has begun, and for an answer to be sent
MAX_UNPROVEN = 16  # connections before the end of their handshake; above it the oldest is closed
MAX_SESSIONS = 32
IDLE_CONTROLLER_S = 5.0  # a robot at rest whose controller was silent for so long may be taken over
_POLL_S = 0.1
_BACKLOG = 128
_MAX_REQUEST = 1 << 12
_log = logging.getLogger("dovetail_robot")


class Session:
    """One connection that has shown the token."""

    def __init__(self, link: Link, role: str, name: str) -> None:
        self.link, self.role, self.name = link, role, name
        self.id = secrets.token_hex(8)
        self.num_stops = 0  # that the client of this session has asked for; older commands are refused
        self.barred = ""  # why this session may not send commands any more
        self.request_s = time.monotonic()
        self.pictures: dict[str, Any] = {}  # what the client has: capture time, or the picture itself


class RobotServer:
    """`with RobotServer(MyArm(), token=token) as server: ...`. Listens on `server.address` until `close`."""

    def __init__(
        self,
        robot: Any,
        *,
        token: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        watchdog_s: float | None = None,
    ) -> None:
        self._token = check_token(token, "the server's token")
        self._host, self._port = host, port
        self.robot = ServedRobot(robot, watchdog_s=watchdog_s)
        self._lock = threading.Lock()
        self._unproven: list[Link] = []  # oldest first
        self._sessions: dict[str, Session] = {}
        self._controller: Session | None = None
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._listener: socket.socket | None = None

    @property
    def address(self) -> str:
        assert self._listener is not None, "call start() first"
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host, self._port), family=family, backlog=_BACKLOG)
        self._listener.settimeout(_POLL_S)
        self.robot.start()
        self._start_thread(self._accept, "accept")

    def close(self) -> None:
        """Stop the robot, then end all connections."""
        self._closed = True
        try:
            self.robot.close()
        finally:
            with self._lock:
                links = [*self._unproven, *(session.link for session in self._sessions.values())]
            for link in links:
                link.disconnect()
            deadline_s = time.monotonic() + 1.0
            for thread in list(self._threads):
                thread.join(max(deadline_s - time.monotonic(), 0.0))
            if self._listener is not None:
                self._listener.close()

    def __enter__(self) -> RobotServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- connections

    def _start_thread(self, target: Any, name: str, *args: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closed:
            try:
                sock, peer = self._listener.accept()
            except socket.timeout:  # noqa: UP041 - in Python 3.8 this is not TimeoutError
                continue
            except OSError as error:  # for example too many open files; sessions continue
                _log.warning("cannot accept a connection: %s", error)
                time.sleep(_POLL_S)
                continue
            try:
                self._start_thread(
                    self._serve, f"{peer[0]}:{peer[1]}", Link(sock, is_server=True), f"{peer[0]}:{peer[1]}"
                )
            except (OSError, RuntimeError) as error:  # closed again already, or no more threads
                _log.warning("a connection was refused: %s", error)
                sock.close()

    def _serve(self, link: Link, name: str) -> None:
        session: Session | None = None
        try:
            session = self._admit(link, name)
            while not self._closed:
                if link.wait(_POLL_S):
                    self._answer(session)
        except WireError as error:
            if session is not None and not self._closed:
                _log.info("%s (%s) has ended: %s", name, session.role, error)
        finally:
            link.close()
            self._forget(link, session)

    def _admit(self, link: Link, name: str) -> Session:
        with self._lock:
            self._unproven.append(link)
            if len(self._unproven) > MAX_UNPROVEN:
                self._unproven.pop(0).disconnect()
        deadline_s = time.monotonic() + HANDSHAKE_S
        session = Session(link, answer_client(link, self._token, deadline_s), name)
        with self._lock:
            if link in self._unproven:
                self._unproven.remove(link)
            is_full = len(self._sessions) >= MAX_SESSIONS and session.role != "stop"
            if not is_full:
                self._sessions[session.id] = session
        if is_full:
            link.send(Message("error", {"message": f"{MAX_SESSIONS} clients are connected already"}), deadline_s)
            raise WireError("too many clients")
        welcome = {"spec": self.robot.description.spec, "session": session.id, "watchdog_s": self.robot.watchdog_s}
        link.send(Message("welcome", welcome), deadline_s)
        return session

    def _forget(self, link: Link, session: Session | None) -> None:
        with self._lock:
            if link in self._unproven:
                self._unproven.remove(link)
            is_controller = session is not None and self._controller is session
            if session is not None:
                self._sessions.pop(session.id, None)
        if is_controller:
            try:
                if not self._closed:
                    self.robot.stop()
                    _log.warning(
                        "stopped the robot: its controller %s has disconnected", session.name if session else ""
                    )
            except Exception as error:  # the watchdog tries again
                _log.error("THE ROBOT DID NOT STOP: stop() failed: %s", error)
            finally:
                with self._lock:
                    if self._controller is session:
                        self._controller = None

    # ---- requests

    def _answer(self, session: Session) -> None:
        received_ns = time.monotonic_ns()
        request = session.link.receive(time.monotonic() + TRANSFER_S, _MAX_REQUEST)
        session.request_s = time.monotonic()
        number = request.integer("id")
        try:
            answer = self._respond(session, request)
        except Refused as error:
            answer = Message("error", {"message": str(error)})
        except WireError:
            raise
        except Exception as error:  # a robot may raise anything, and the client gets the reason
            _log.warning("request '%s' failed: %s: %s", request.kind[:20], type(error).__name__, error)
            line = " ".join(f"{request.kind[:20]} failed: {type(error).__name__}: {error}".split())[:400]
            answer = Message("error", {"message": line})
        times = {"id": number, "received_ns": received_ns, "sent_ns": time.monotonic_ns()}
        self._transmit(session, Message(answer.kind, {**answer.fields, **times}, answer.arrays))

    def _transmit(self, session: Session, answer: Message) -> None:
        session.link.send(answer, time.monotonic() + TRANSFER_S)

    def _respond(self, session: Session, request: Message) -> Message:
        if request.kind == "stop":
            return self._stop(request)
        if request.kind == "ping":
            return Message("pong")
        if session.role == "robot" and request.kind == "observe":
            return _observation(session, self.robot.observe())
        if session.role == "robot" and request.kind == "send":
            return self._send(session, request)
        raise WireError(f"unknown request {request.kind[:20]!r} of role {session.role}")

    def _stop(self, request: Message) -> Message:
        """A stop of a controller's own client ends its earlier commands. Any other stop also bars the controller."""
        own, num_stops = str(request.fields.get("session", "")), request.integer("stops")
        with self._lock:
            controller, sender = self._controller, self._sessions.get(own)
            if sender is not None:
                sender.num_stops = max(sender.num_stops, num_stops)
            if controller is not None and controller is not sender:
                controller.barred = "the robot was stopped over another connection. Connect again"
        self.robot.stop()
        return Message("stopped")

    def _send(self, session: Session, request: Message) -> Message:
        action, num_stops = request.arrays.get("action"), request.integer("stops")
        if action is None:
            raise WireError("a command without an action")
        self._take_control(session)

        def check() -> None:
            if session.barred:
                raise Refused(session.barred)
            if num_stops < session.num_stops:
                raise Refused("the robot was stopped after this command was sent")
            if self._controller is not session:
                raise Refused("another client controls the robot now")

        executed = self.robot.send(action, deadline_ns=request.integer("deadline_ns"), check=check)
        return Message("sent", {}, {"executed": executed})

    def _take_control(self, session: Session) -> None:
        with self._lock:
            before = self._controller
            if before is session:
                return
            if before is not None:
                silent_s = time.monotonic() - before.request_s
                if self.robot.is_moving or silent_s < IDLE_CONTROLLER_S:
                    raise Refused(f"{before.name} controls the robot already. End that run first")
                before.barred = f"{session.name} controls the robot now. Connect again"
            self._controller = session
        _log.info("%s controls the robot", session.name)


def _observation(session: Session, sample: Sample) -> Message:
    """Leave out pictures that the client has."""
    arrays, known = {}, []
    for key, value in sample.values.items():
        if value.ndim == 3:
            stamp = sample.captured_ns.get(key)
            if _is_known(session.pictures.get(key), stamp, value):
                known.append(key)
                continue
            session.pictures[key] = value.copy() if stamp is None else stamp
        arrays[key] = value
    fields = {"time_ns": sample.time_ns, "captured_ns": sample.captured_ns, "known": known}
    return Message("observation", fields, arrays)


def _is_known(before: Any, stamp: int | None, picture: Any) -> bool:
    if stamp is not None:
        return type(before) is int and before == stamp
    return isinstance(before, np.ndarray) and np.array_equal(before, picture)
