"""Retrain a success classifier during a run with people's corrections.

`Retraining.poll()` is called between episodes and never blocks. After people have labeled enough new episodes, and the
classifier was wrong about at least one, a low-priority process trains it further. The run uses the new one if it is better.

    python -m dovetail.rewards.retraining RUN FOLDER     that process: prints the result as one line of JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.contracts import Labeler
from dovetail.core.errors import DovetailError, one_line
from dovetail.labels.human import HUMAN
from dovetail.labels.learned.classifier import ClassifierConfig, ClassifierLabeler
from dovetail.labels.store import Cursor, LabelStore
from dovetail.processes.child import ONE_THREAD, ChildProcess, exit_with_parent
from dovetail.runs.folder import RunFolder

__all__ = ["Retraining", "main", "make_retraining", "retrain"]

_EVENT = "classifier retrained"


class Retraining:
    """Starts and finishes retraining. Call `poll` between episodes and `close` at the end."""

    def __init__(self, folder: RunFolder, labeler: ClassifierLabeler, *, after: int) -> None:
        self._folder, self._labeler, self._after = folder, labeler, after
        self._store = LabelStore(folder.labels)
        self._cursor: Cursor | None = None
        self._labeled: dict[str, bool] = {}  # episodes labeled by people -> whether the classifier was wrong
        self._used: set[str] | None = None  # episodes of the newest training
        self._process: ChildProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def poll(self) -> None:
        """Use the new classifier if the training has ended; start a training if there are enough new labels."""
        if self._process is not None:
            if self._process.has_ended:
                self._finish(self._process)
            return
        self._read()
        if self._used is None:
            facts = self._labeler.classifier.facts
            self._used = {one["id"] for one in facts.get("episodes", ()) if one["by_person"]}
        fresh = self._labeled.keys() - self._used
        if len(fresh) >= self._after and any(self._labeled[episode_id] for episode_id in fresh):
            self._used |= fresh
            self._start()

    def close(self) -> None:
        """Stop a running training. It starts again when the run is resumed."""
        if self._process is not None:
            self._process.kill("the run has ended")
            self._process.popen.communicate()
            self._process = None

    def _read(self) -> None:
        changed, self._cursor = self._store.changed(self._cursor)
        for episode_id in changed:
            given = [record.labels for record in self._store.history(episode_id) if not record.retracted]
            people = [labels for labels in given if labels.labeler == HUMAN and not labels.discard]
            if not people:
                self._labeled.pop(episode_id, None)
                continue
            machine = [labels.success for labels in given if labels.labeler == "classifier"]
            self._labeled[episode_id] = bool(machine) and machine[-1] != people[-1].success

    def _start(self) -> None:
        self._process = ChildProcess(
            "the process that trains the classifier",
            "dovetail.rewards.retraining",
            [str(self._folder.path), str(self._labeler.path)],
            environment=ONE_THREAD,
            stdin_pipe=True,
            stdout=subprocess.PIPE,
        )

    def _finish(self, process: ChildProcess) -> None:
        self._process = None
        output, _ = process.popen.communicate()
        try:
            result: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            result = {"error": process.exit_reason()}
        name = result.pop("name", None)
        if name is not None:
            try:
                self._labeler.adopt(name)
            except DovetailError as error:
                name, result["error"] = None, one_line(error)
        self._folder.event(_EVENT, taken_up=name is not None, version=self._labeler.version, **result)


def make_retraining(folder: RunFolder, labelers: Sequence[Labeler]) -> Retraining | None:
    """Return the retraining of the first classifier that is configured for it, if any."""
    for labeler in labelers:
        if isinstance(labeler, ClassifierLabeler) and labeler.retrain_after is not None:
            return Retraining(folder, labeler, after=labeler.retrain_after)
    return None


# ---- the process that trains


def retrain(folder: RunFolder, path: Path) -> dict[str, Any]:
    """Train the classifier in `path` further; save the new one next to it if it is better. Returns facts for an event."""
    # imported here, because only this process needs them
    from dovetail.labels.learned.folder import load_classifier, save_classifier
    from dovetail.labels.learned.training import ends_in_success, train
    from dovetail.rewards.classifier_training import facts_of, stored_ground_truths
    from dovetail.rewards.training_episodes import ground_truths, labeled_episodes

    old = load_classifier(path)
    rule = _config(folder)
    own = ground_truths(folder)
    mine = {truth.info.id for truth in own}
    found = [truth for truth in stored_ground_truths(old.facts) if truth.info.id not in mine] + own
    episodes, robot = labeled_episodes(found, old.config)
    trained = train(episodes, old.config, robot=robot, start=old.net)

    def errors(places: Sequence[int], *, newer: bool) -> int:
        threshold = rule.threshold or (trained.threshold if newer else old.threshold)
        consecutive = rule.consecutive or old.consecutive
        wrong = 0
        for place in places:
            p = trained.probabilities[place] if newer else old.probabilities(episodes[place].frames)
            predicted = ends_in_success(p, threshold=threshold, consecutive=consecutive)
            wrong += predicted != episodes[place].success
        return wrong

    people = [place for place, one in enumerate(episodes) if one.by_person]
    held = trained.held_out
    result: dict[str, Any] = {
        "was": old.version,
        "episodes": len(episodes),
        "by_people": len(people),
        "errors_about_people": [errors(people, newer=False), errors(people, newer=True)],
        "held_out": len(held),
        "errors_held_out": [errors(held, newer=False), errors(held, newer=True)],
    }
    before, after = result["errors_about_people"]
    held_before, held_after = result["errors_held_out"]
    if after < before and held_after <= held_before:
        newer = _unused(path.parent)
        save_classifier(newer, trained, facts=facts_of(trained, found))
        result["name"] = newer.name
    return result


def _config(folder: RunFolder) -> ClassifierConfig:
    return next(one.config for one in folder.config.labels if isinstance(one.config, ClassifierConfig))


def _unused(folder: Path) -> Path:
    number = 1
    while (path := folder / f"retrained-{number}").exists():
        number += 1
    return path


def main(arguments: Sequence[str]) -> int:
    import torch

    os.nice(10)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    exit_with_parent()
    run, path = map(Path, arguments)
    try:
        result = retrain(RunFolder.open(run), path)
    except Exception as error:  # a process border: the run reports it and keeps the old classifier
        result = {"error": one_line(error)}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return 1 if "error" in result else 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
