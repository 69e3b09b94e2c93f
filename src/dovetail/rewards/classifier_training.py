"""Train a success classifier on the labeled episodes of runs and save it with figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import StoreError
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.learned.folder import save_classifier
from dovetail.labels.learned.report import Score, scores
from dovetail.labels.learned.training import Trained, TrainingConfig, train
from dovetail.reports.classifier_plots import classifier_curves, contact_sheet
from dovetail.rewards.training_episodes import GroundTruth, ground_truths, labeled_episodes
from dovetail.runs.folder import RunFolder

__all__ = ["SavedClassifier", "facts_of", "stored_ground_truths", "train_classifier"]

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the number of finished items and their total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedClassifier:
    """A classifier that was just trained and saved."""

    version: str
    trained: Trained
    scores: Sequence[Score]


def train_classifier(
    runs: Sequence[Path], config: TrainingConfig, *, out: Path, on_progress: Progress
) -> SavedClassifier:
    """Train on all episodes of these runs whose success is known, and write the new folder `out`."""
    found = [truth for run in runs for truth in ground_truths(RunFolder.open(run))]
    episodes, robot = labeled_episodes(
        found, config, on_read=lambda done: on_progress("reading episodes", done, len(found))
    )
    trained = train(
        episodes,
        config,
        robot=robot,
        on_update=lambda done, loss: on_progress(f"training, held-out loss {loss:.3f}", done, config.updates),
    )
    task = found[-1].info.task
    out.parent.mkdir(parents=True, exist_ok=True)
    version = save_classifier(
        out,
        trained,
        facts=facts_of(trained, found),
        pictures={
            "curves.png": classifier_curves(
                trained, title=f"{task}: success from {', '.join(trained.net.cameras)}"
            ),
            "mistakes.png": contact_sheet(trained),
        },
    )
    return SavedClassifier(version=version, trained=trained, scores=scores(trained))


def facts_of(trained: Trained, found: Sequence[GroundTruth]) -> dict[str, Any]:
    """Return the facts to store in a classifier's folder: training episodes and scores."""
    held = set(trained.held_out)
    return {
        "task": found[-1].info.task,
        "updates": trained.num_updates,
        "scores": [score.to_json() for score in scores(trained)],
        "episodes": [
            {
                "run": str(truth.run.resolve()),
                "id": truth.info.id,
                "success": truth.success,
                "by_person": truth.by_person,
                "held_out": place in held,
            }
            for place, truth in enumerate(found)
        ],
    }


def stored_ground_truths(facts: Mapping[str, Any]) -> list[GroundTruth]:
    """Return the ground truths that `facts_of` stored, without episodes that no longer exist."""
    found = []
    logs: dict[Path, EpisodeLog] = {}
    for one in facts.get("episodes", ()):
        run = Path(one["run"])
        log = logs.setdefault(run, EpisodeLog(run / "episodes"))
        with contextlib.suppress(StoreError):
            info = log.manifest(one["id"])
            found.append(GroundTruth(run=run, info=info, success=one["success"], by_person=one["by_person"]))
    return found
