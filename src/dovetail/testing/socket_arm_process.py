"""An emulated arm in its own process, behind TCP sockets. Tests use it where a real arm would be.

    with ArmProcess() as arm:
        robot = {"type": "dovetail.testing.socket_arm:SocketArm", "address": arm.address}
        ...
        arm.behave(observe="silent")     # from now on it does not answer `observe`
        arm.stops(after_ns=pressed_ns)   # when stop commands arrived, in monotonic ns

The arm listens on two ports: motion (`observe`, `send`, `stop`) and stop (only `stop`, whatever the motion port does). It
keeps a journal of everything that it received, with monotonic times. The test controls it through its standard input.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dovetail.core.clock import NS_PER_S

__all__ = ["ArmProcess", "Lines", "address_pair"]

_POLL_S = 0.005
_IDLE_S = 0.05
_NEVER = 1 << 62  # after all entries of a journal
_LAG_S = 0.1  # time constant of the motors
_MOVING = 1e-3  # rad: a target further away than this is a motion


def address_pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class Lines:
    """JSON messages over a socket, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = b""

    @classmethod
    def connect(cls, address: str, *, timeout_s: float | None) -> Self:
        connection = socket.create_connection(address_pair(address), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    def write(self, message: Mapping[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any] | None:
        """The next message; None when the other side has closed the connection."""
        while b"\n" not in self._received:
            part = self.socket.recv(1 << 16)
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self.socket.close()


class _Motors:
    """Joints that follow their target with a lag, and what was wrong with the commands."""

    def __init__(self, num_joints: int, *, limit: float, max_speed: float) -> None:
        self._target: npt.NDArray[np.float64] = np.zeros(num_joints + 1)
        self._position = self._target.copy()
        self._limit, self._max_speed = limit, max_speed
        self._since_ns = time.monotonic_ns()
        self.stuck = False

    def position(self, now_ns: int) -> npt.NDArray[np.float64]:
        passed_s = (now_ns - self._since_ns) / NS_PER_S
        self._since_ns = now_ns
        if not self.stuck:
            self._position = self._target + (self._position - self._target) * np.exp(-passed_s / _LAG_S)
        return self._position

    def command(self, target: npt.NDArray[np.float64], now_ns: int) -> dict[str, Any]:
        """Move to a target from now on. Returns what the journal says about it."""
        away = np.abs(target - self.position(now_ns))[:-1]
        self._target = target
        entry: dict[str, Any] = {"distance": float(away.max()), "moving": bool(away.max() > _MOVING)}
        broken = []
        if not np.isfinite(target).all():
            broken.append("not finite")
        if (np.abs(target[:-1]) > self._limit + 1e-4).any():
            broken.append("outside the limits")
        if (away / _LAG_S > self._max_speed).any():
            broken.append(f"speed {away.max() / _LAG_S:.2f} rad/s")
        return {**entry, "violations": broken} if broken else entry

    def stop(self, now_ns: int) -> None:
        self._target = self.position(now_ns).copy()


class _Arm:
    """The journal, the motors, and how the arm behaves. All connections share it."""

    def __init__(self, *, num_joints: int, limit: float, max_speed: float, exclusive: bool) -> None:
        self._motors = _Motors(num_joints, limit=limit, max_speed=max_speed)
        self._journal: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._picture = 0
        self.exclusive = exclusive
        self.behavior: dict[str, Any] = {
            "observe": "answer",  # or "silent"
            "send": "answer",  # or "silent"
            "stop": "answer",  # or "silent"
            "accept": True,  # False: the motion port leaves new connections unanswered
            "deaf": False,  # True: motion connections that are open now are not read any more
            "late_s": 0.0,  # delay of each answer
            "stuck": False,  # True: the motors do not move
            "frozen": False,  # True: the camera repeats its picture
        }
        self.client_pid = 0  # the process that sent the newest target
        self.dropped_ns = self.deaf_ns = 0  # motion connections opened before are closed, or not read

    def note(self, kind: str, **values: Any) -> None:
        with self._lock:
            self._journal.append({"ns": time.monotonic_ns(), "kind": kind, **values})

    def behave(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            if name == "drop":
                self.dropped_ns = time.monotonic_ns()
            elif name not in self.behavior:
                raise ValueError(f"an arm has no behavior '{name}'; it has {', '.join(self.behavior)} and drop")
            else:
                self.behavior[name] = value
        if changes.get("deaf"):
            self.deaf_ns = time.monotonic_ns()
        self._motors.stuck = self.behavior["stuck"]

    def handle(self, message: Mapping[str, Any], *, port: str) -> dict[str, Any]:
        """Execute a message of the motion port or of the stop port, and return the answer."""
        now_ns = time.monotonic_ns()
        with self._lock:
            if "send" in message:
                self.client_pid = message["pid"]
            if "stop" in message:
                self._motors.stop(now_ns)
                self._journal.append({"ns": now_ns, "kind": "stop", "port": port, "pid": message.get("pid")})
                return {"stopped": True}
            if "send" in message:
                entry = self._motors.command(np.array(message["send"], np.float64), now_ns)
                self._journal.append({"ns": now_ns, "kind": "target", **entry})
                return {"sent": True}
            if not self.behavior["frozen"]:
                self._picture += 1
            position = self._motors.position(now_ns)
            return {"time_ns": now_ns, "position": position.tolist(), "picture": self._picture % 251}

    def journal(self, after_ns: int) -> list[dict[str, Any]]:
        with self._lock:
            return self._journal[bisect.bisect_left(self._journal, after_ns, key=lambda entry: entry["ns"]) :]

    def delay_ns(self, pressed_ns: int) -> int | None:
        """See ArmProcess."""
        with self._lock:
            commands = (entry for entry in reversed(self._journal) if entry["kind"] in ("stop", "target"))
            first_stop_ns: int | None = None  # of the stops that no motion follows
            for entry in commands:
                if entry["kind"] == "stop":
                    if entry["ns"] < pressed_ns:
                        return 0  # no motion has followed since
                    first_stop_ns = entry["ns"]
                elif entry.get("moving"):
                    return None if first_stop_ns is None else first_stop_ns - pressed_ns
            return 0


class _MotionConnection:
    """One client of the motion port."""

    def __init__(self, arm: _Arm, connection: socket.socket) -> None:
        self._arm, self._lines, self._opened_ns = arm, Lines(connection), time.monotonic_ns()
        self._unanswered: list[tuple[str, dict[str, Any]]] = []

    def serve(self) -> None:
        try:
            while self._readable() and (message := self._lines.read()) is not None:
                answer = self._arm.handle(message, port="motion")
                if "id" in message:  # otherwise no answer is expected
                    kind = next(name for name in ("stop", "send", "observe") if name in message)
                    self._unanswered.append((kind, {**answer, "id": message["id"]}))
                self._answer()
        except OSError:
            pass
        finally:
            self._lines.close()
            self._arm.note("disconnected")

    def _answer(self) -> None:
        """Send the answers that the arm is not silent about."""
        behavior = self._arm.behavior
        while self._unanswered and behavior[self._unanswered[0][0]] == "answer":
            if behavior["late_s"]:
                time.sleep(behavior["late_s"])
            self._lines.write(self._unanswered.pop(0)[1])

    def _readable(self) -> bool:
        """Wait for a message. False when the connection is to end."""
        while not self._ended():
            self._answer()
            if self._is_deaf():
                time.sleep(_POLL_S)
            elif self._waiting() and not self._is_deaf():
                return self._arm.dropped_ns < self._opened_ns
        return False

    def _is_deaf(self) -> bool:
        return self._arm.behavior["deaf"] and self._opened_ns < self._arm.deaf_ns

    def _waiting(self) -> bool:
        return bool(select.select([self._lines.socket], [], [], _IDLE_S)[0])

    def _ended(self) -> bool:
        """Whether the client is gone, or the test wants the connection to be dropped."""
        poll = select.poll()
        poll.register(self._lines.socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        return self._arm.dropped_ns > self._opened_ns or bool(poll.poll(0))


def _listen(address: str) -> socket.socket:
    return socket.create_server(address_pair(address), backlog=16)


def _serve_motion(arm: _Arm, server: socket.socket) -> None:
    current: threading.Thread | None = None
    while True:
        connection, _ = server.accept()
        while not arm.behavior["accept"]:
            time.sleep(_POLL_S)
        if arm.exclusive and current is not None:  # like most arms: one client at a time, the next one waits
            current.join()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arm.note("connected")
        current = threading.Thread(target=_MotionConnection(arm, connection).serve, daemon=True)
        current.start()


def _serve_stop(arm: _Arm, connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = Lines(connection)
    try:
        while (message := lines.read()) is not None:
            lines.write(arm.handle({"stop": True, "pid": message.get("pid")}, port="stop"))
    except OSError:
        pass
    finally:
        lines.close()


def _accept(server: socket.socket, arm: _Arm) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_serve_stop, args=(arm, connection), daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--joints", type=int, default=6)
    parser.add_argument("--limit", type=float, default=3.0)
    parser.add_argument("--max-speed", type=float, default=3.0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--ports", type=int, nargs=2, default=(0, 0))
    given = parser.parse_args()
    arm = _Arm(num_joints=given.joints, limit=given.limit, max_speed=given.max_speed, exclusive=not given.shared)
    motion, stop = (_listen(f"{given.host}:{port}") for port in given.ports)
    threading.Thread(target=_serve_motion, args=(arm, motion), daemon=True).start()
    threading.Thread(target=_accept, args=(stop, arm), daemon=True).start()
    ports = {"motion": motion.getsockname()[1], "stop": stop.getsockname()[1]}
    _print({name: f"{given.host}:{port}" for name, port in ports.items()})
    for line in sys.stdin:  # until the test ends
        message = json.loads(line)
        arm.behave(message.get("behave", {}))
        pressed_ns = message.get("pressed_ns")
        delay_ns = arm.delay_ns(pressed_ns) if pressed_ns is not None else None
        _print({"journal": arm.journal(message["after_ns"]), "client_pid": arm.client_pid, "delay_ns": delay_ns})
    os._exit(0)


def _print(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class ArmProcess:
    """Starts an emulated arm and controls it. See the module."""

    def __init__(
        self,
        *,
        num_joints: int = 6,
        limit: float = 3.0,
        max_speed: float = 3.0,
        host: str = "127.0.0.1",
        exclusive: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        """`limit`: largest joint angle in rad; `max_speed`: in rad/s. Commands beyond them are violations in the journal.

        `exclusive`: one motion connection at a time; the next one waits until the current one ends. `prefix` comes before
        the command, for example `ip netns exec NAME`.
        """
        numbers = {"--joints": num_joints, "--limit": limit, "--max-speed": max_speed, "--host": host}
        options = [text for name, value in numbers.items() for text in (name, str(value))]
        module = [sys.executable, "-P", "-m", "dovetail.testing.socket_arm_process"]
        self._command = [*prefix, *module, *options, *([] if exclusive else ["--shared"])]
        self._process: subprocess.Popen[str] | None = None
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._start(self._command)
        return self

    def _start(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._addresses = self._read()

    def kill(self) -> None:
        """End the arm at once, as a loss of power does."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        """Start the arm again at the same address, after `kill`. Its joints are at zero and its journal is empty."""
        ports = [str(address_pair(address)[1]) for address in (self.address, self.stop_address)]
        self._start([*self._command, "--ports", *ports])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.communicate()  # closes its input, so it ends

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """Of the motion port."""
        return self._addresses["motion"]

    @property
    def stop_address(self) -> str:
        """Of the stop port."""
        return self._addresses["stop"]

    def behave(self, **changes: Any) -> None:
        """Change the behavior: observe, send and stop ("answer" or "silent"), accept, deaf, late_s, stuck, frozen, drop."""
        self._ask({"behave": changes, "after_ns": _NEVER})

    def behave_well(self) -> None:
        self.behave(
            observe="answer",
            send="answer",
            stop="answer",
            accept=True,
            deaf=False,
            late_s=0.0,
            stuck=False,
            frozen=False,
        )

    @property
    def client_pid(self) -> int:
        """The process that sent the newest target; 0 before the first one."""
        return int(self._ask({"after_ns": _NEVER})["client_pid"])

    def journal(self, *, after_ns: int = 0) -> list[dict[str, Any]]:
        """What the arm has received: `ns`, `kind` and more. Kinds: target, stop, connected, disconnected."""
        entries: list[dict[str, Any]] = self._ask({"after_ns": after_ns})["journal"]
        return entries

    def stops(self, *, after_ns: int = 0) -> list[int]:
        """Times at which a stop command arrived, in monotonic ns."""
        return [entry["ns"] for entry in self.journal(after_ns=after_ns) if entry["kind"] == "stop"]

    def motions(self, *, after_ns: int = 0) -> list[int]:
        """Times at which a target arrived that moves the arm, in monotonic ns."""
        return [entry["ns"] for entry in self.journal(after_ns=after_ns) if entry.get("moving")]

    def delay_ns(self, pressed_ns: int) -> int | None:
        """Time from a press to the stop that no motion followed. 0: the arm stood already. None: it still moves."""
        delay_ns: int | None = self._ask({"after_ns": _NEVER, "pressed_ns": pressed_ns})["delay_ns"]
        return delay_ns

    def violations(self) -> list[dict[str, Any]]:
        """Commands beyond the arm's limits."""
        return [entry for entry in self.journal() if "violations" in entry]

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the emulated arm has ended")
        message: dict[str, Any] = json.loads(line)
        return message


if __name__ == "__main__":
    main()
