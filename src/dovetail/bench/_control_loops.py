"""The control process on a fake arm with a camera, and a plain loop with `time.sleep` to compare it with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dovetail.config.load import load
from dovetail.core.clock import NS_PER_S
from dovetail.core.types import Purpose
from dovetail.policies.flows.flow import Flow
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import order_episode
from dovetail.weights.store import DiskWeightStore

__all__ = ["control_process", "plain_loop", "publish", "weight_swaps", "with_new_weights"]

_CONFIG = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: {num_ticks}, tolerance: 0.0}}
robot: {{type: "dovetail.testing.live:LiveArm", control_hz: {control_hz}, image_size: [128, 128]}}
actor: {{type: rtc, layout: processes, swap_weights: chunk, execution_horizon: 16}}
policy: {{horizon: 48, {policy}}}
algorithm: imitation
"""
_SMALL = "type: flow, inputs: [ee_pose, goal, front]"
_LARGE = "type: 'dovetail.bench._control_loops:LargeFlow', inputs: [ee_pose, goal]"


class LargeFlow(Flow):
    """A flow policy with 100 MB of weights that inference does not use, as if a large model ran on a GPU."""

    NUM_BYTES = 100_000_000

    @property
    def components(self) -> Mapping[str, nn.Module]:
        if not hasattr(self, "_ballast"):
            self._ballast = nn.Embedding(self.NUM_BYTES // 4 // 1000, 1000)
        return {**super().components, "ballast": self._ballast}


def control_process(
    control_hz: int, *, seconds: float, policy: str = _SMALL, weights: Path | None = None
) -> dict[str, float]:
    """Run one episode with all its processes, including the image recorder; return its telemetry."""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(
            _CONFIG.format(control_hz=control_hz, num_ticks=round(control_hz * seconds), policy=policy)
        )
        assembly = build_assembly(load([path]))
        try:
            actor = assembly.actor_for(Purpose.ONLINE, weights=weights)
            actor.run(order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="bench"))
            return dict(actor.telemetry())
        finally:
            assembly.close()


def plain_loop(control_hz: int, *, seconds: float) -> dict[str, float]:
    """Sleep until each deadline with `time.sleep`, and do nothing else."""
    period_ns = round(NS_PER_S / control_hz)
    late_ns = np.zeros(round(seconds * control_hz))
    deadline_ns = time.monotonic_ns()
    for tick in range(len(late_ns)):
        deadline_ns += period_ns
        time.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S)
        now_ns = time.monotonic_ns()
        late_ns[tick] = now_ns - deadline_ns
        if late_ns[tick] > period_ns:  # skip missed ticks, or all later ones would be late
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
    """Telemetry of the same episode without, then with, 100 MB of new weights every second."""
    return control_process(50, seconds=seconds, policy=_LARGE), with_new_weights(seconds=seconds)


def with_new_weights(*, seconds: float) -> dict[str, float]:
    """Telemetry of an episode with 100 MB of new weights every second."""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-weights-") as folder:
        publisher = subprocess.Popen([sys.executable, "-P", "-m", "dovetail.bench._control_loops", folder])
        try:
            return control_process(50, seconds=seconds, policy=_LARGE, weights=Path(folder))
        finally:
            publisher.kill()
            publisher.wait()


def publish(folder: Path) -> None:
    """Publish new weights of the large policy every second, until killed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as scratch:
        path = Path(scratch) / "config.yaml"
        path.write_text(_CONFIG.format(control_hz=50, num_ticks=1, policy=_LARGE))
        assembly = build_assembly(load([path]))
        policy = assembly.trainable()
    store = DiskWeightStore(folder)
    while True:
        next_s = time.monotonic() + 1.0
        weights = {name: dict(arrays) for name, arrays in policy.weights().items()}
        for array in weights["ballast"].values():
            array[0] = next_s  # weights that differ from the last ones
        store.publish(weights)
        time.sleep(max(0.0, next_s - time.monotonic()))


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
