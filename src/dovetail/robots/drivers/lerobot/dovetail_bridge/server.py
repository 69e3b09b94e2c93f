"""The bridge's socket: one client controls the device, and any number of others may stop it.

A STOP has its own connection and thread. It makes all commands that were sent before it invalid at once, then waits a
short time for the device, which another call may be using, and holds the arm. If that call hangs, the answer is an error,
and the arm is held as soon as the call returns. When the controlling client is gone, the arm is held too.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from .devices import Camera, Robot, Teleoperator
from .discovery import DeviceError, build, one_line
from .priority import take_priority
from .wire import Message, WireError, receive, send

__all__ = ["PROTOCOL", "Server"]

PROTOCOL = 2
_log = logging.getLogger("dovetail_bridge")
_HELLO_S = 2.0  # an unknown client has this long to prove that it knows the token
_HELLO_HEADER = 4096
_HANDOVER_S = 1.5
_MAX_CLIENTS = 16
_STOP_WAIT_S = 0.3  # a STOP waits so long for a device that is in use
_SEND_S = 2.0  # a client that does not read is dropped
_CREDENTIALS = struct.Struct("3i")


class Server:
    """Serves one device. `settings` is the JSON that the client which started the bridge gave."""

    def __init__(self, listener: socket.socket, *, token: str, settings: dict[str, Any]) -> None:
        self._listener = listener
        self._token = token
        self._settings = settings
        self._lock = threading.Lock()  # held while the device is used
        self._clients: set[socket.socket] = set()
        self._clients_lock = threading.Lock()
        self._control: socket.socket | None = None
        self._device: Any = None
        self._stopped_ns = 0  # commands that were sent before are refused
        self._must_hold = False  # a STOP could not hold the arm yet
        self._last_client_s = time.monotonic()
        self._closing = False

    def serve(self) -> None:
        """Return when no client has been connected for `linger_s`, or after `close`."""
        linger_s = float(self._settings["linger_s"])
        self._listener.settimeout(0.2)
        while not self._closing:
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                if not self._clients and time.monotonic() - self._last_client_s > linger_s:
                    break
                continue
            except OSError:
                break
            with self._clients_lock:
                if len(self._clients) >= _MAX_CLIENTS:
                    link.close()
                    continue
                self._clients.add(link)
            threading.Thread(target=self._serve_client, args=(link,), daemon=True).start()
        self._end()

    def close(self) -> None:
        self._closing = True

    # ---- clients

    def _serve_client(self, link: socket.socket) -> None:
        try:
            role = self._greet(link)
            if role == "control":
                self._serve_control(link)
            elif role == "stop":
                self._serve_stop(link)
        except (OSError, WireError) as error:
            _log.info("a client is gone: %s", one_line(error))
        finally:
            with contextlib.suppress(OSError):
                link.close()
            with self._clients_lock:
                self._clients.discard(link)
                self._last_client_s = time.monotonic()

    def _greet(self, link: socket.socket) -> str | None:
        """Check who it is: the same user, who knows the token."""
        raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] != os.getuid():
            return None
        hello = receive(link, deadline_s=time.monotonic() + _HELLO_S, max_header=_HELLO_HEADER, max_arrays=0)
        if hello is None or hello.type != "hello":
            return None
        link.settimeout(_SEND_S)
        if not hmac.compare_digest(_bytes(hello.fields.get("token")), self._token.encode()):
            send(link, Message("error", {"error": "the token is wrong"}))
            return None
        if hello.fields.get("protocol") != PROTOCOL:
            send(
                link,
                Message("error", {"error": f"this bridge speaks protocol {PROTOCOL}. End process {os.getpid()}"}),
            )
            return None
        role = hello.fields.get("role")
        if role == "control":
            if not self._take_control(link):
                send(link, Message("error", {"error": "another process controls this device"}))
                return None
        elif role != "stop":
            return None
        try:
            send(link, Message("ok", {"pid": os.getpid()}))
        except OSError:
            if role == "control":
                self._control = None
            raise
        return str(role)

    def _take_control(self, link: socket.socket) -> bool:
        """Wait a moment for a client that has just gone: its arm is being held."""
        deadline_s = time.monotonic() + _HANDOVER_S
        while True:
            with self._clients_lock:
                if self._control is None:
                    self._control = link
                    return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)

    def _serve_stop(self, link: socket.socket) -> None:
        link.settimeout(None)
        while (message := receive(link, max_arrays=0)) is not None:
            self._take_priority()
            answer = (
                self._guarded(self._stop) if message.type == "stop" else Message("error", {"error": "unknown"})
            )
            link.settimeout(_SEND_S)
            send(link, answer)
            link.settimeout(None)

    def _take_priority(self) -> None:
        """For the thread that calls it. Not for a device that would keep a core busy, or that is only looked at."""
        if isinstance(self._device, Robot) and self._device.sleeps and not self._device.only_looks:
            take_priority()

    def _serve_control(self, link: socket.socket) -> None:
        try:
            link.settimeout(None)
            while (message := receive(link)) is not None:
                answer = self._guarded(lambda message=message: self._handle(message))  # type: ignore[misc]
                link.settimeout(_SEND_S)
                send(link, answer)
                link.settimeout(None)
        finally:
            answer = self._guarded(self._stop)  # the client is gone: nothing may move on
            _log.info("the controlling client is gone: %s", answer.fields)
            with self._clients_lock:
                self._control = None

    def _guarded(self, call: Callable[[], Message]) -> Message:
        try:
            return call()
        except DeviceError as error:
            return Message("error", {"error": str(error)})
        except Exception as error:  # anything of LeRobot: the client turns it into a fault
            _log.exception("a call failed")
            return Message("error", {"error": one_line(error)})

    # ---- messages

    def _stop(self) -> Message:
        self._stopped_ns = time.monotonic_ns()
        if isinstance(self._device, Teleoperator):
            with self._lock:
                self._device.torque(on=False)  # a person may be holding it
            return Message("ok", {"how": "released"})
        if not isinstance(self._device, Robot):
            return Message("ok", {"how": "not connected"})
        self._must_hold = True
        began_s = time.monotonic()
        if not self._lock.acquire(timeout=_STOP_WAIT_S):
            waited_s = time.monotonic() - began_s
            raise DeviceError(
                f"another call has used the device for more than {waited_s:.1f} s. No new command can reach the arm; "
                "it holds its last target. Use its power switch if it moves"
            )
        try:
            return Message("ok", {"how": self._hold()})
        except Exception:
            self._drain()
            raise
        finally:
            self._lock.release()

    def _drain(self) -> None:
        if isinstance(self._device, Robot | Teleoperator):
            self._device.drain()

    def _hold(self) -> str:
        how: str = self._device.hold()
        self._must_hold = False
        return how

    def _handle(self, message: Message) -> Message:
        with self._lock:
            try:
                if self._must_hold and self._device is not None:
                    self._hold()
                return self._handle_locked(message)
            except Exception:
                self._drain()
                raise

    def _handle_locked(self, message: Message) -> Message:
        fields = message.fields
        if message.type == "open":
            if self._device is None:
                self._device = self._build()
            return Message("ok", {"features": self._device.features()})
        device = self._device
        if device is None:
            raise DeviceError("`open` comes first")
        if message.type == "connect":
            if not isinstance(device, Robot):
                device.connect()
                return Message("ok")
            looks = fields["looks"] is True
            device.connect(looks=looks)
            device.configure(keys=list(fields["keys"]), holds=dict(fields["holds"]))
            device.forget_frames()
            if not looks:
                self._take_priority()
                device.hold()  # the targets of the motors may be old
            return Message("ok")
        if isinstance(device, Robot):
            return self._handle_robot(device, message)
        if isinstance(device, Teleoperator):
            return self._handle_teleoperator(device, message)
        if message.type == "read":
            answer, arrays = device.read(timeout_s=float(fields["timeout_s"]), depth=bool(fields["depth"]))
            return Message("ok", answer, arrays)
        raise DeviceError(f"a camera does not know '{message.type}'")

    def _handle_robot(self, robot: Robot, message: Message) -> Message:
        fields = message.fields
        if message.type == "observe":
            answer, arrays = robot.observe(fields["cameras"])
            return Message("ok", answer, arrays)
        if message.type == "send":
            now_ns = time.monotonic_ns()
            if fields["sent_ns"] <= self._stopped_ns:
                raise DeviceError("the command was sent before a STOP")
            if now_ns > fields["deadline_ns"]:
                raise DeviceError("the command is too old")
            keys = fields["keys"]
            values = message.arrays["values"]
            if values.shape != (len(keys),):
                raise DeviceError(f"{len(keys)} keys, but values of shape {list(values.shape)}")
            sent = robot.send(dict(zip(keys, values.tolist(), strict=True)))
            return Message("ok", {"executed": [sent[key] for key in keys]})
        raise DeviceError(f"a robot does not know '{message.type}'")

    def _handle_teleoperator(self, leader: Teleoperator, message: Message) -> Message:
        fields = message.fields
        if message.type == "read":
            answer, arrays = leader.read(fields["keys"])
            return Message("ok", answer, arrays)
        if message.type == "feedback":
            leader.feedback(dict(zip(fields["keys"], message.arrays["values"].tolist(), strict=True)))
            return Message("ok")
        if message.type == "torque":
            leader.torque(on=bool(fields["on"]))
            return Message("ok")
        if message.type == "events":
            return Message("ok", {"events": leader.events()})
        raise DeviceError(f"a teleoperator does not know '{message.type}'")

    def _build(self) -> Any:
        settings = self._settings
        kind, type_name, config = settings["kind"], settings["device"], settings["config"]
        raw = build(kind, type_name, config, settings["imports"])
        what = f"'{type_name}'" + (f" with id '{config['id']}'" if config.get("id") else "")
        if kind == "camera":
            return Camera(raw, what=what)
        option = "teleop" if kind == "teleoperator" else "robot"
        options = " ".join(
            f"--{option}.{key}={value}" for key, value in config.items() if isinstance(value, str | int | float)
        )
        command = f"lerobot-calibrate --{option}.type={type_name} {options}".strip()
        device = Robot if kind == "robot" else Teleoperator
        return device(
            raw,
            what=what,
            calibrate_command=command,
            retries=settings["retries"],
            timeout_s=settings["timeout_s"],
        )

    def _end(self) -> None:
        """Hold and disconnect, but do not wait for a device that hangs."""

        def finish() -> None:
            with self._lock, contextlib.suppress(Exception):
                if isinstance(self._device, Robot) and not self._settings["release"]:
                    with contextlib.suppress(Exception):
                        self._device.hold()
                if self._device is not None:
                    self._device.disconnect()

        thread = threading.Thread(target=finish, daemon=True)
        thread.start()
        thread.join(3.0)


def _bytes(token: Any) -> bytes:
    """Empty for anything but a text. JSON can have half a character, which has no bytes."""
    return token.encode(errors="replace") if isinstance(token, str) else b""
