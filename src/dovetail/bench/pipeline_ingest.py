"""How many arms one store takes: 1 to 32 that replay an episode at 20 Hz with two cameras, beside a learner on the CPU.

The arms are threads of one process and their spools are left out: what is measured is what the store, its labeler and its
learner have to do. Cost is processor time, so that it tells more than one machine's wall clock.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from dovetail.bench._ingest import Ingested, Plant, record
from dovetail.bench.rows import Row
from dovetail.config.load import load
from dovetail.core.types import Episode
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.cluster.connection import connected

__all__ = ["bench"]

ARMS = (1, 2, 4, 8, 16, 32)
_KEEPS_UP = 0.9  # of what ends on the arms in the time; the last ones are still on their way
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
    "cluster.store_mb=1500",
)


def bench(*, quick: bool) -> Iterator[Row]:
    seconds = 6.0 if quick else 20.0
    config = load(["peg-insertion-sac"], [*_SETTINGS, "runtime=ray"])
    episode = record(config)
    place = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    try:
        folder = RunFolder.create(place / "run", config)
        with connected(config.cluster, num_cpus=4):
            plant = Plant(folder, episode)
            plant.start()
            yield from _rows(plant, folder, episode, seconds, arms=ARMS[:2] if quick else ARMS)
            plant.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _rows(
    plant: Plant, folder: RunFolder, episode: Episode, seconds: float, *, arms: tuple[int, ...]
) -> Iterator[Row]:
    alone = plant.measure(0, seconds)
    alone_hz = alone.updates / alone.seconds
    yield Row(name="no arms: updates of the learner", value=alone_hz, unit="/s")
    rest = {name: used_s / alone.seconds for name, used_s in alone.cpu_s.items()}
    yield Row(
        name="no arms: store and labeler, of a core", value=100 * (rest["store"] + rest["labeler"]), unit="%"
    )
    last_good, costs = 0, []
    for num_arms in arms:
        found = plant.measure(num_arms, seconds)
        label = f"{num_arms} arm{'s' if num_arms > 1 else ''}"
        yield from _of(label, found, rest)
        hz = found.updates / found.seconds
        yield Row(
            name=f"{label}: updates of the learner",
            value=hz,
            unit="/s",
            baseline="no arms",
            ratio=hz / alone_hz if alone_hz else None,
        )
        if found.stored:
            costs.append(sum(_cost_s(found, rest, name) for name in ("store", "labeler")))
        if found.stored >= _KEEPS_UP * found.offered:
            last_good = num_arms
    yield Row(name="the most arms that it kept up with", value=last_good, unit="arms")
    yield from _on_paper(folder, episode, cost_s=median(costs))


def _cost_s(found: Ingested, rest: Mapping[str, float], name: str) -> float:
    """Processor time for an episode, without what the role uses at rest."""
    return max(0.0, found.cpu_s[name] - found.seconds * rest[name]) / max(1, found.stored)


def _of(label: str, found: Ingested, rest: Mapping[str, float]) -> Iterator[Row]:
    offered_hz, stored_hz = found.offered / found.seconds, found.stored / found.seconds
    yield Row(
        name=f"{label}: episodes stored",
        value=stored_hz,
        unit="/s",
        baseline="episodes that ended",
        ratio=stored_hz / offered_hz if offered_hz else None,
    )
    if found.latencies:
        yield Row(name=f"{label}: from its end to the store's word, p50", value=median(found.latencies), unit="s")
        yield Row(name=f"{label}: from its end to the store's word, at most", value=max(found.latencies), unit="s")
    for name in ("store", "labeler", "arms"):
        cost_ms = 1e3 * _cost_s(found, rest, name)
        yield Row(name=f"{label}: {name}, processor time for an episode", value=cost_ms, unit="ms")


def _on_paper(folder: RunFolder, episode: Episode, *, cost_s: float) -> Iterator[Row]:
    """What one store could take with a core of its own, and what its machine's network and disk would see of each arm."""
    episode_s = len(episode) / episode.robot.control_hz
    raw = sum(column.nbytes for segment in episode.segments for column in segment.columns.values())
    stored = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in folder.episodes.iterdir()]
    yield Row(name="one core of the store and labeler: arms, at most", value=episode_s / cost_s, unit="arms")
    yield Row(name="an arm sends", value=raw / episode_s / 1e6, unit="MB/s")
    yield Row(name="of which the log keeps", value=median(stored) / episode_s / 1e6, unit="MB/s")
