"""Flow policies for the benches that act with chunks: trained as `dovetail run RECIPE` would, once, then kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dovetail.config.load import config_hash, load
from dovetail.config.schema import RunConfig
from dovetail.core.types import WeightSnapshot
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore

__all__ = ["trained_flow"]

_NO_FRILLS = ("run.untrained_episodes=0", "run.eval_episodes=1", "run.showcase_episodes=0")


def trained_flow(
    recipe: str,
    *,
    cache: Path,
    overrides: tuple[str, ...] = (),
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> tuple[WeightSnapshot, RunConfig]:
    """The weights of a recipe's policy, and its config. `on_progress(phase, done, total)` hears of the training.

    The run that made them stays in `cache`, named by recipe and settings: the same settings are trained once, and
    a training that was interrupted goes on.
    """
    config = load([recipe], overrides)
    settings = load([recipe], (*overrides, *_NO_FRILLS))
    path = cache / f"{recipe}-{config_hash(settings)}"

    def watch(status: RunStatus) -> None:
        on_progress(status.phase, status.done, status.total)

    folder = RunFolder.open(path, expect=settings) if path.exists() else RunFolder.create(path, settings)
    if folder.read_json("evaluations/after.json") is None:
        folder.lock()
        InlineRun(folder, watch=watch).run()
    snapshot = DiskWeightStore(folder.weights).latest()
    assert snapshot is not None, "a run that was evaluated has published weights"
    return snapshot, config
