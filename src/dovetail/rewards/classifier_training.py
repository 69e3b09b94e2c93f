"""From runs whose episodes were judged to a success classifier in a folder, with all that people want to see of it."""

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
from dovetail.reports.classifier_figures import classifier_curves, contact_sheet
from dovetail.rewards.judged_episodes import Truth, judged_episodes, truths
from dovetail.runs.folder import RunFolder

__all__ = ["Made", "facts_of", "noted_truths", "train_classifier"]

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is, and of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A classifier that was just made."""

    version: str
    trained: Trained
    scores: Sequence[Score]


def train_classifier(runs: Sequence[Path], config: TrainingConfig, *, out: Path, on_progress: Progress) -> Made:
    """Train on all that these runs can vouch for, and write `out`, a new folder."""
    found = [truth for run in runs for truth in truths(RunFolder.open(run))]
    episodes, robot = judged_episodes(
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
    return Made(version=version, trained=trained, scores=scores(trained))


def facts_of(trained: Trained, found: Sequence[Truth]) -> dict[str, Any]:
    """What is noted in a classifier's folder: what it was trained on, and how well it did."""
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


def noted_truths(facts: Mapping[str, Any]) -> list[Truth]:
    """What `facts_of` noted, of episodes that are still where they were."""
    found = []
    logs: dict[Path, EpisodeLog] = {}
    for one in facts.get("episodes", ()):
        run = Path(one["run"])
        log = logs.setdefault(run, EpisodeLog(run / "episodes"))
        with contextlib.suppress(StoreError):
            info = log.manifest(one["id"])
            found.append(Truth(run=run, info=info, success=one["success"], by_person=one["by_person"]))
    return found
