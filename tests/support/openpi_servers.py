"""Emulators of servers with openpi's protocol, with the misbehavior of the originals, and a robot for them.

They were written from the protocol's description (no original server was run) and pack arrays by their own code, so that an
error in ours is not repeated here.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.policies.openpi.policy import OpenpiConfig, OpenpiPolicy

__all__ = ["DIALECTS", "ROBOT", "Dialect", "emulating", "observed", "openpi_client"]

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joint_pos": ArraySpec(shape=(3,)),
        "gripper": ArraySpec(shape=(2,)),
        "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "wrist": ArraySpec(shape=(64, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(2,), names=("a", "b"), low=(-9.0, -9.0), high=(9.0, 9.0)),
    action_kind="joint_target",
    control_hz=10.0,
)


@dataclass
class Dialect:
    """One implementation of the protocol. `infer` gets an observation and returns actions [H, A]."""

    path: str = "/"
    keys: str = "droid"
    state_key: str = "observation/joint_position"
    str_keys: bool = False  # array keys as text
    has_timing: bool = True
    infer: Callable[[dict[str, Any]], Any] | None = None
    stall_s: float = 0.0  # the event loop computes: nothing else happens meanwhile
    num_answers: int = 1
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)

    def actions(self, observation: dict[str, Any]) -> Any:
        first = observation[self.state_key][0]
        return np.array([[first, 1.0], [first, 2.0], [first, 3.0]])  # float64, as the stock transforms give


DIALECTS = {
    "openpi": Dialect,
    "sglang": lambda **more: Dialect(
        path="/openpi/policy", keys="lerobot", state_key="observation.state", str_keys=True, **more
    ),
    "vllm-omni": lambda **more: Dialect(path="/v1/realtime/robot/openpi", has_timing=False, **more),
}


def _pack(message: Any, *, text: bool) -> bytes:
    def name(key: str) -> Any:
        return key if text else key.encode()

    def array(value: Any) -> Any:
        return {
            name("__ndarray__"): True,
            name("data"): value.tobytes(),
            name("dtype"): value.dtype.str,
            name("shape"): value.shape,
        }

    return msgpack.packb(message, default=array)


def _unpack(data: bytes) -> Any:
    def read(items: dict[Any, Any]) -> Any:
        if b"__ndarray__" not in items:
            return items
        return np.ndarray(buffer=items[b"data"], dtype=np.dtype(items[b"dtype"]), shape=items[b"shape"])

    return msgpack.unpackb(data, object_hook=read)


@contextmanager
def emulating(dialect: Dialect, *, port: int = 0) -> Iterator[str]:
    """Run the emulator in a thread and yield its address. At the end its connections are cut, as by a kill."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    found: list[Any] = []

    async def handle(connection: ServerConnection) -> None:
        dialect.headers.append(connection.request.headers.get("Authorization", ""))
        prev_total_ms = None
        await connection.send(_pack({}, text=False))
        try:
            while True:
                observation = _unpack(await connection.recv())
                dialect.seen.append(observation)
                try:
                    began_s = time.monotonic()
                    time.sleep(dialect.stall_s)
                    actions = (dialect.infer or dialect.actions)(observation)
                    timing = {"infer_ms": 1e3 * (time.monotonic() - began_s)}
                    answer = {"actions": actions, "policy_timing": {"infer_ms": 1.0}, "unknown_key": [1]}
                    if prev_total_ms is not None:
                        timing["prev_total_ms"] = prev_total_ms
                    if dialect.has_timing:
                        answer["server_timing"] = timing
                    for _ in range(dialect.num_answers):
                        await connection.send(_pack(answer, text=dialect.str_keys))
                    prev_total_ms = 1e3 * (time.monotonic() - began_s)
                except ConnectionClosed:
                    raise
                except Exception:
                    await connection.send(traceback.format_exc())
                    await connection.close(1011, "Internal server error.")
        except ConnectionClosed:
            pass

    def check(connection: ServerConnection, request: Any) -> Any:
        return None if request.path == dialect.path else connection.respond(404, "Not Found\n")

    async def start() -> None:
        options = {"compression": None, "max_size": None, "process_request": check, "close_timeout": 0.1}
        found.append(await serve(handle, "127.0.0.1", port, **options))
        started.set()

    async def stop() -> None:
        found[0].close()
        await found[0].wait_closed()

    loop.create_task(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert started.wait(10)
    try:
        yield f"127.0.0.1:{found[0].sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def openpi_client(address: str, *, dialect: Dialect | None = None, **settings: Any) -> Iterator[OpenpiPolicy]:
    dialect = dialect or Dialect()
    defaults = {"path": dialect.path, "keys": dialect.keys, "horizon": 3, "first_timeout_s": 10.0}
    config = OpenpiConfig.from_mapping({"address": address, **defaults, **settings})
    policy = OpenpiPolicy(config, robot=ROBOT)
    try:
        yield policy
    finally:
        policy.close()


def observed(first: float = 0.0, *, prompt: str = "insert the peg") -> dict[str, Any]:
    """Inputs of one row for the robot above."""
    rng = np.random.default_rng(0)
    images = {
        key: rng.integers(0, 256, (1, *ROBOT.observation[key].shape), dtype=np.uint8) for key in ("front", "wrist")
    }
    return {
        "joint_pos": np.array([[first, 0.5, 0.25]], np.float32),
        "gripper": np.array([[0.75, 0.1]], np.float32),
        "prompt": encode_prompt(prompt)[None],
        **images,
    }
