"""How many arms one store can serve: 1 to 32 arms replay an episode at 20 Hz with two cameras, beside a learner on the CPU.

The arms are threads of one process without spools. The benchmark measures the work of the store, the labeler and the learner
in CPU time, which depends less on the load of the machine than wall-clock time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from benchmarks._ingest import Ingested, RolesWithoutArms, record
from dovetail.bench.rows import Row
from dovetail.config.load import load
from dovetail.core.types import Episode
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.cluster.connection import connected

__all__ = ["bench"]

ARMS = (1, 2, 4, 8, 16, 32)
_KEEPS_UP = 0.9  # share of the ended episodes that must be stored; the last ones may still be in transit
_SETTINGS = (
    "robot.control_hz=20.0",
    "robot.images=[wrist, front]",
    "robot.max_step_m=0.005",
    "task.time_limit_s=5.0",
    "operator.type=none",
    "labeling.hide_success=true",
    "policy.inputs=[ee_pose, ee_twist, ee_error, wrist, front]",
    "policy.encoder.features=64",
    "algorithm.batch_size=8",
    "learner.utd=1e6",
    "learner.publish_every=50",
    "run.demos=0",
    "run.env_steps=1000000000",
    "cluster.object_store_mb=1500",
)


def bench(*, quick: bool) -> Iterator[Row]:
    seconds = 6.0 if quick else 20.0
    config = load(["peg-insertion-sac"], [*_SETTINGS, "runtime=ray"])
    episode = record(config)
    scratch = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    try:
        folder = RunFolder.create(scratch / "run", config)
        with connected(config.cluster, num_cpus=4):
            roles = RolesWithoutArms(folder, episode)
            roles.start()
            yield from _rows(roles, folder, episode, seconds, arms=ARMS[:2] if quick else ARMS)
            roles.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _rows(
    roles: RolesWithoutArms, folder: RunFolder, episode: Episode, seconds: float, *, arms: tuple[int, ...]
) -> Iterator[Row]:
    alone = roles.measure(0, seconds)
    alone_hz = alone.updates / alone.seconds
    yield Row(name="no arms: updates of the learner", value=alone_hz, unit="/s")
    idle = {name: used_s / alone.seconds for name, used_s in alone.cpu_s.items()}
    yield Row(
        name="no arms: store and labeler, of a core", value=100 * (idle["store"] + idle["labeler"]), unit="%"
    )
    most_arms, costs = 0, []
    for num_arms in arms:
        found = roles.measure(num_arms, seconds)
        label = f"{num_arms} arm{'s' if num_arms > 1 else ''}"
        yield from _arm_rows(label, found, idle)
        hz = found.updates / found.seconds
        yield Row(
            name=f"{label}: updates of the learner",
            value=hz,
            unit="/s",
            baseline="no arms",
            ratio=hz / alone_hz if alone_hz else None,
        )
        if found.stored:
            costs.append(sum(_cost_s(found, idle, name) for name in ("store", "labeler")))
        if found.stored >= _KEEPS_UP * found.offered:
            most_arms = num_arms
    yield Row(name="most arms that it kept up with", value=most_arms, unit="arms")
    yield from _estimate(folder, episode, cost_s=median(costs))


def _cost_s(found: Ingested, idle: Mapping[str, float], name: str) -> float:
    """CPU seconds per episode, without those the role uses when idle."""
    return max(0.0, found.cpu_s[name] - found.seconds * idle[name]) / max(1, found.stored)


def _arm_rows(label: str, found: Ingested, idle: Mapping[str, float]) -> Iterator[Row]:
    offered_hz, stored_hz = found.offered / found.seconds, found.stored / found.seconds
    yield Row(
        name=f"{label}: episodes stored",
        value=stored_hz,
        unit="/s",
        baseline="episodes that ended",
        ratio=stored_hz / offered_hz if offered_hz else None,
    )
    if found.latencies:
        yield Row(
            name=f"{label}: from its end to the store's acknowledgement, p50",
            value=median(found.latencies),
            unit="s",
        )
        yield Row(
            name=f"{label}: from its end to the store's acknowledgement, at most",
            value=max(found.latencies),
            unit="s",
        )
    for name in ("store", "labeler", "arms"):
        cost_ms = 1e3 * _cost_s(found, idle, name)
        yield Row(name=f"{label}: {name}, CPU time per episode", value=cost_ms, unit="ms")


def _estimate(folder: RunFolder, episode: Episode, *, cost_s: float) -> Iterator[Row]:
    """Arms that one store could serve with a whole core, and the network and disk traffic per arm."""
    episode_s = len(episode) / episode.robot.control_hz
    raw = sum(column.nbytes for segment in episode.segments for column in segment.columns.values())
    stored = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in folder.episodes.iterdir()]
    yield Row(name="one core for store and labeler: arms, at most", value=episode_s / cost_s, unit="arms")
    yield Row(name="an arm sends", value=raw / episode_s / 1e6, unit="MB/s")
    yield Row(name="of which the log keeps", value=median(stored) / episode_s / 1e6, unit="MB/s")
