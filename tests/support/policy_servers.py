"""Helpers for tests of the policy server: a robot, a scripted policy, servers in a thread or a process, clients."""

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
from dovetail.serve.weights import ServedWeights
from support import TESTS

__all__ = ["ROBOT", "TOKEN", "ScriptedPolicy", "client", "inputs", "serve_process", "serving"]

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


class ScriptedPolicy:
    """A policy whose actions are `answer(observations, context)`. It records its calls."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or (
            lambda observations, context: np.zeros((len(observations["force"]), 3, 2), np.float32)
        )
        self.calls: list[tuple[dict[str, Array], ActContext]] = []
        self.num_resets = 0
        self.spec = PolicySpec(
            name="scripted",
            observation={"force": ROBOT.observation["force"]},
            action=ROBOT.action,
            action_kind="ee_delta",
            horizon=3,
            guidable=True,
        )

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        self.calls.append((dict(observations), context))
        return ActionChunk(actions=self.answer(observations, context), observed_ns=0, policy_version=7)

    def reset(self) -> None:
        self.num_resets += 1


@contextmanager
def serving(
    policy: Any,
    *,
    token: bytes = TOKEN,
    port: int = 0,
    log: list[str] | None = None,
    max_rows: int = 1,
    weights: ServedWeights | None = None,
) -> Iterator[str]:
    """Run a server in a thread and yield its address. Its log lines are appended to `log`."""
    lines: list[str] = [] if log is None else log
    server = PolicyServer(policy, token=token, weights=weights, max_rows=max_rows, log=lines.append)
    address = server.listen(port=port)
    stopped = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    try:
        yield address
    finally:
        stopped.set()
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
    """Random observations for a policy. Keys with history lack their oldest tick."""
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
    """Run `dovetail serve` in a process. When it is ready, yield the process and its address."""
    python_path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
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
        output = ""
        while not (ready := _READY.search(output)):
            line = process.stdout.readline()
            assert line, f"the server ended: {output}"
            output += line
        yield process, ready[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
