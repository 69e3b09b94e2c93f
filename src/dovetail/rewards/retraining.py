"""A success classifier that people put right while the run goes on.

`Retraining.look()` is called between episodes and never waits. Once people have labeled_episode enough more episodes, and the
classifier did not always agree, a process of its own trains it anew, gently; the new one is taken up if it does better.

    python -m dovetail.rewards.retraining RUN FOLDER     that process: says what came of it in one line of JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.contracts import Labeler
from dovetail.core.errors import DovetailError, one_line
from dovetail.labels.human import HUMAN
from dovetail.labels.learned.classifier import ClassifierConfig, ClassifierLabeler
from dovetail.labels.store import Cursor, LabelStore
from dovetail.processes.child import ONE_THREAD, ChildProcess
from dovetail.runs.folder import RunFolder

__all__ = ["Retraining", "main", "retrain", "make_retraining"]

_EVENT = "classifier retrained"


class Retraining:
    """`look` between episodes; `close` at the end."""

    def __init__(self, folder: RunFolder, labeler: ClassifierLabeler, *, after: int) -> None:
        self._folder, self._labeler, self._after = folder, labeler, after
        self._store = LabelStore(folder.labels)
        self._cursor: Cursor | None = None
        self._judged: dict[str, bool] = {}  # by people: and whether the classifier had said otherwise
        self._used: set[str] | None = None  # what the newest attempt has learned from
        self._process: ChildProcess | None = None

    @property
    def under_way(self) -> bool:
        return self._process is not None

    def look(self) -> None:
        """Take up what was trained, if it has just been; start another, if there is reason to."""
        if self._process is not None:
            if self._process.has_ended:
                self._finish(self._process)
            return
        self._read()
        if self._used is None:
            facts = self._labeler.classifier.facts
            self._used = {one["id"] for one in facts.get("episodes", ()) if one["by_person"]}
        fresh = self._judged.keys() - self._used
        if len(fresh) >= self._after and any(self._judged[episode_id] for episode_id in fresh):
            self._used |= fresh
            self._start()

    def close(self) -> None:
        """An attempt that is not through is given up: the labels are there, and it begins again with the run."""
        if self._process is not None:
            self._process.kill("the run has ended")
            self._process.popen.communicate()
            self._process = None

    def _read(self) -> None:
        changed, self._cursor = self._store.changed(self._cursor)
        for episode_id in changed:
            said = [record.labels for record in self._store.history(episode_id) if not record.retracted]
            people = [labels for labels in said if labels.labeler == HUMAN and not labels.discard]
            if not people:
                self._judged.pop(episode_id, None)
                continue
            machine = [labels.success for labels in said if labels.labeler == "classifier"]
            self._judged[episode_id] = bool(machine) and machine[-1] != people[-1].success

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
        said, _ = process.popen.communicate()
        try:
            result: dict[str, Any] = json.loads(said.splitlines()[-1])
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
    """For the first of a run's labelers that asks for it; most runs have none."""
    for labeler in labelers:
        if isinstance(labeler, ClassifierLabeler) and labeler.retrain_after is not None:
            return Retraining(folder, labeler, after=labeler.retrain_after)
    return None


# ---- the process that trains


def retrain(folder: RunFolder, path: Path) -> dict[str, Any]:
    """A newer one beside the old in `path`, if it does better; what came of it, for an event."""
    # imported here: a run loads what it needs to look, and this process the rest
    from dovetail.labels.learned.folder import load_classifier, save_classifier
    from dovetail.labels.learned.training import ends_in_success, train
    from dovetail.rewards.classifier_training import facts_of, stored_ground_truths
    from dovetail.rewards.training_episodes import labeled_episodes, ground_truths

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
            said = ends_in_success(p, threshold=threshold, consecutive=consecutive)
            wrong += said != episodes[place].success
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
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    run, path = map(Path, arguments)
    try:
        result = retrain(RunFolder.open(run), path)
    except Exception as error:  # a process border: the run is told, and goes on with what it has
        result = {"error": one_line(error)}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return 1 if "error" in result else 0


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
