"""The real control process on a stand-in arm with a camera, and the loop that everybody writes first."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dovetail.config.load import load
from dovetail.core.clock import NS_PER_S
from dovetail.core.types import Purpose
from dovetail.policies.flow import Flow
from dovetail.runs.assembly.build import build_station
from dovetail.runs.evaluate import order_episode
from dovetail.weights.store import DiskWeightStore

__all__ = ["control_process", "plain_loop", "publish", "weight_swaps"]

_CELL = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: {num_ticks}, tolerance: 0.0}}
robot: {{type: "dovetail.testing.live:LiveArm", control_hz: {control_hz}, image_size: [128, 128]}}
actor: {{type: rtc, layout: processes, swap: chunk, execution_horizon: 16}}
policy: {{horizon: 48, {policy}}}
algorithm: imitation
"""
_SMALL = "type: flow, inputs: [ee_pose, goal, front]"
_LARGE = "type: 'dovetail.bench._punctual:Laden', inputs: [ee_pose, goal]"


class Laden(Flow):
    """A flow that carries 100 MB of weights which cost no time to think with: a large model's, on a GPU, say."""

    NUM_BYTES = 100_000_000

    @property
    def components(self) -> Mapping[str, nn.Module]:
        if not hasattr(self, "_ballast"):
            self._ballast = nn.Embedding(self.NUM_BYTES // 4 // 1000, 1000)
        return {**super().components, "ballast": self._ballast}


def control_process(
    control_hz: int, *, seconds: float, policy: str = _SMALL, weights: Path | None = None
) -> dict[str, float]:
    """One episode with all its processes, a recorder of images included; what its telemetry says."""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "cell.yaml"
        path.write_text(_CELL.format(control_hz=control_hz, num_ticks=round(control_hz * seconds), policy=policy))
        station = build_station(load([path]))
        try:
            actor = station.actor_for(Purpose.ONLINE, weights=weights)
            actor.run(order_episode(station, purpose=Purpose.ONLINE, index=0, config_hash="bench"))
            return dict(actor.telemetry())
        finally:
            station.close()


def plain_loop(control_hz: int, *, seconds: float) -> dict[str, float]:
    """`time.sleep` until the next deadline, and nothing to do."""
    period_ns = round(NS_PER_S / control_hz)
    late_ns = np.zeros(round(seconds * control_hz))
    deadline_ns = time.monotonic_ns()
    for tick in range(len(late_ns)):
        deadline_ns += period_ns
        time.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S)
        now_ns = time.monotonic_ns()
        late_ns[tick] = now_ns - deadline_ns
        if late_ns[tick] > period_ns:  # or it would be late for ever
            deadline_ns = now_ns
    p50, p99 = np.percentile(late_ns / 1e6, (50, 99))
    return {
        "ticks": float(len(late_ns)),
        "missed": float((late_ns > period_ns).sum()),
        "lateness_p50_ms": float(p50),
        "lateness_p99_ms": float(p99),
        "lateness_max_ms": float(late_ns.max() / 1e6),
    }


def weight_swaps(*, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """The same episode without, then with, 100 MB of new weights every second."""
    quiet = control_process(50, seconds=seconds, policy=_LARGE)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-weights-") as folder:
        publisher = subprocess.Popen([sys.executable, "-m", "dovetail.bench._punctual", folder])
        try:
            busy = control_process(50, seconds=seconds, policy=_LARGE, weights=Path(folder))
        finally:
            publisher.kill()
            publisher.wait()
    return quiet, busy


def publish(folder: Path) -> None:
    """New weights of the large policy every second, until killed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as cell:
        path = Path(cell) / "cell.yaml"
        path.write_text(_CELL.format(control_hz=50, num_ticks=1, policy=_LARGE))
        station = build_station(load([path]))
        policy = station.trainable()
    store = DiskWeightStore(folder)
    while True:
        next_s = time.monotonic() + 1.0
        weights = {name: dict(arrays) for name, arrays in policy.weights().items()}
        for array in weights["ballast"].values():
            array[0] = next_s  # something new, and as large
        store.publish(weights)
        time.sleep(max(0.0, next_s - time.monotonic()))


def main(arguments: Sequence[str]) -> None:
    publish(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
