"""What the tests of policy servers share: a robot, servers in a thread or in a process, and clients of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.remote.policy import RemoteConfig, RemotePolicy
from dovetail.serve.server import PolicyServer
from support import TESTS

__all__ = ["ROBOT", "TOKEN", "Spoken", "client", "inputs", "serve_process", "serving"]

TOKEN = b"a token for tests, long enough"
ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joint_pos": ArraySpec(shape=(3,), low=(-1.0, -np.inf, 0.1), high=(1.0, np.inf, 0.2)),
        "force": ArraySpec(shape=(2,), names=("x", "y")),
        "front": ArraySpec(shape=(20, 16, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5)),
    action_kind="ee_delta",
    control_hz=10.0,
)
_READY = re.compile(r"ready on (\S+), token in (\S+)\n")


class Spoken:
    """A policy that says what the test wants to hear: `answer(observations, context)` makes its actions."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or (
            lambda observations, context: np.zeros((len(observations["force"]), 3, 2), np.float32)
        )
        self.asked: list[tuple[dict[str, Array], ActContext]] = []
        self.num_resets = 0
        self.spec = PolicySpec(
            name="spoken",
            observation={"force": ROBOT.observation["force"]},
            action=ROBOT.action,
            action_kind="ee_delta",
            horizon=3,
            guidable=True,
        )

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        self.asked.append((dict(observations), context))
        return ActionChunk(actions=self.answer(observations, context), observed_ns=0, policy_version=7)

    def reset(self) -> None:
        self.num_resets += 1


@contextmanager
def serving(policy: Any, *, token: bytes = TOKEN, port: int = 0, told: list[str] | None = None) -> Iterator[str]:
    """A server in a thread; yields its address."""
    lines: list[str] = [] if told is None else told
    server = PolicyServer(policy, token=token, tell=lines.append)
    address = server.listen(port=port)
    ended = threading.Event()
    thread = threading.Thread(target=server.run, args=(ended.is_set,))
    thread.start()
    try:
        yield address
    finally:
        ended.set()
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def client(address: str, *, token: bytes = TOKEN, **config: Any) -> Iterator[RemotePolicy]:
    os.environ["TEST_TOKEN"] = token.decode()
    policy = RemotePolicy(RemoteConfig(address=address, token_env="TEST_TOKEN", **config), robot=ROBOT)
    try:
        yield policy
    finally:
        policy.close()


def inputs(spec: PolicySpec, *, num: int = 1, seed: int = 0) -> dict[str, Array]:
    """Observations for a policy, with a tick of history missing where it wants some."""
    rng = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for key, array in spec.observation.items():
        ticks = (spec.history[key],) if key in spec.history else ()
        values[key] = (rng.random((num, *ticks, *array.shape)) * 250).astype(array.dtype)
        if ticks:
            values[f"{key}/mask"] = np.arange(ticks[0])[None].repeat(num, 0) > 0
    return values


@contextmanager
def serve_process(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`dovetail serve` in a process of its own, once it says it is ready; yields it and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", "serve", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = ""
        while not (ready := _READY.search(said)):
            line = process.stdout.readline()
            assert line, f"it ended: {said}"
            said += line
        yield process, ready[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
