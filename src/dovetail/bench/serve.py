"""What serving with openpi's protocol costs: loopback, three 224x224 images per request, the server in its own process.

The policy copies a number of the observation, so its own time is small, and a lost or swapped answer is counted.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dovetail.bench._serve_process import KEYS, POLICY_SPEC, ROBOT, EchoPolicy
from dovetail.bench.rows import Row, at_most
from dovetail.core.errors import DovetailError
from dovetail.core.types import ActContext, Array
from dovetail.policies.inputs import zero_inputs
from dovetail.policies.openpi.policy import OpenpiConfig, OpenpiPolicy
from dovetail.policies.remote.handshake import make_token

__all__ = ["bench"]

NUM_CLIENTS = (1, 4, 16)
_CONTEXT = ActContext(deterministic=True)


def bench(*, quick: bool) -> Iterator[Row]:
    num_requests = math.ceil((960 if quick else 100_000) / len(NUM_CLIENTS))
    bare_s = _bare_s(200)
    yield Row(name="bare policy: median", value=1e3 * bare_s, unit="ms")
    num_wrong = num_asked = 0
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as (address, key_file):
        for num_clients in NUM_CLIENTS:
            name = f"{num_clients} client{'s' if num_clients > 1 else ''}"
            num_each = math.ceil(num_requests / num_clients)
            times_s, total_s, wrong = _measure(address, key_file, num_clients, num_each)
            num_wrong += wrong
            num_asked += num_clients * num_each
            if num_clients == 1:
                yield at_most(f"{name}: overhead, median", 1e3 * (float(np.median(times_s)) - bare_s), "ms", 2.0)
            yield Row(name=f"{name}: median", value=1e3 * float(np.median(times_s)), unit="ms")
            yield Row(name=f"{name}: 99th percentile", value=1e3 * float(np.quantile(times_s, 0.99)), unit="ms")
            yield Row(name=f"{name}: throughput", value=len(times_s) / total_s, unit="requests/s")
    yield Row(name="requests", value=num_asked, unit="")
    yield at_most("lost or swapped answers", num_wrong, "", 0.0)


def _bare_s(repeats: int) -> float:
    policy, inputs, times_s = EchoPolicy(), zero_inputs(POLICY_SPEC), []
    for _ in range(repeats):
        began_s = time.perf_counter()
        policy.act(inputs, _CONTEXT)
        times_s.append(time.perf_counter() - began_s)
    return float(np.median(times_s))


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, Path]]:
    key_file = make_token(folder / "key")
    command = [sys.executable, "-P", "-m", "dovetail.bench._serve_process", str(key_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise DovetailError("the server of the bench ended")
            yield address, key_file
        finally:
            process.kill()


def _measure(address: str, key_file: Path, num_clients: int, num_each: int) -> tuple[Array, float, int]:
    """Seconds of each request, seconds of all, and the number of lost or swapped answers."""
    times_s: list[float] = []
    num_right: list[int] = []
    ready = threading.Barrier(num_clients + 1)

    def ask(client: int) -> None:
        config = OpenpiConfig(address=address, keys=KEYS, horizon=10, api_key_file=str(key_file), timeout_s=30.0)
        policy, inputs = OpenpiPolicy(config, robot=ROBOT), zero_inputs(POLICY_SPEC)
        policy.warmup()
        ready.wait()
        mine, right = [], 0
        for number in range(num_each):
            first = np.float32(client * num_each + number)  # of this request alone; exact up to 2^24
            inputs["joint_pos"][0, 0] = first
            began_s = time.perf_counter()
            chunk = policy.act(inputs, _CONTEXT)
            mine.append(time.perf_counter() - began_s)
            right += bool(chunk.actions[0, 0, 0] == first)
        policy.close()
        times_s.extend(mine)
        num_right.append(right)

    threads = [threading.Thread(target=ask, args=(client,), daemon=True) for client in range(num_clients)]
    for thread in threads:
        thread.start()
    ready.wait(60.0)
    began_s = time.perf_counter()
    for thread in threads:
        thread.join()
    total_s = time.perf_counter() - began_s
    return np.array(times_s), total_s, num_clients * num_each - sum(num_right)
