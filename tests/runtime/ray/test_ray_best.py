"""The best checkpoint of a run on Ray, whoever is killed while it is being evaluated: no Ray is needed to tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Outcome
from dovetail.learn.checkpoint import checkpoint_facts, load_checkpoint, save_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.driver.run import RayRun
from dovetail.runtime.ray.roles.learner import LearnerRole
from support.toy_run import TOY

NAME = "at-00000050"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "toy.yaml").write_text(TOY)
    overrides = ["runtime=ray", "run.eval_every_steps=50", "run.scheduled_eval_episodes=2"]
    return RunFolder.create(tmp_path / "r", load([tmp_path / "toy.yaml"], overrides))


class Learner:
    """Saves what was best, or would have, had its process not been killed."""

    def __init__(self, save_best: Callable[[float, str], None]) -> None:
        self.save_best = SimpleNamespace(remote=save_best)
        self.rest = SimpleNamespace(remote=lambda: 1)
        self.learn = SimpleNamespace(remote=lambda cloned: None)


def driver(folder: RunFolder, save_best: Callable[[float, str], None], monkeypatch: pytest.MonkeyPatch) -> RayRun:
    run = RayRun(folder)
    done = {("robot",): [{"id": f"{n}", "robot": "robot", "outcome": Outcome.SUCCESS} for n in range(2)]}
    crew: Any = SimpleNamespace(
        rest=lambda: None,
        insist=lambda call: call(),
        learner=Learner(save_best),
        store=SimpleNamespace(note=SimpleNamespace(remote=lambda *_, **__: None)),
    )
    weights: Any = SimpleNamespace(load=lambda version: SimpleNamespace(version=version))
    monkeypatch.setattr(run, "_crew", crew)
    monkeypatch.setattr(run, "_weights", weights)
    monkeypatch.setattr(run, "_each", lambda *_: done)
    run.status.env_steps = 60
    return run


def test_a_driver_that_is_killed_before_it_is_saved_evaluates_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(success: float, by: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver(folder, killed, monkeypatch)._evaluate_meanwhile(NAME, None)
    saved = []
    run = driver(folder, lambda success, by: saved.append((success, by)), monkeypatch)
    assert run._schedule.due(60) == NAME
    run._evaluate_meanwhile(NAME, None)
    assert saved == [(1.0, f"evaluation {NAME}")]
    assert run._schedule.due(60) is None


def test_a_learner_that_is_killed_meanwhile_has_what_was_evaluated(folder: RunFolder) -> None:
    """It is started anew, and told to learn only when the evaluation is over."""
    last = {"env_steps": 60, "config_hash": folder.config_hash, "published": 80, "version": 7}
    save_checkpoint(folder.checkpoints / "last", {"a": np.arange(3.0)}, facts=last)
    role = LearnerRole("learner", path=folder.path, store=None, weights=None)
    try:
        role.save_best(0.5, f"evaluation {NAME}")
    finally:
        role.close()
    best = folder.checkpoints / "best"
    assert checkpoint_facts(best) == {**last, "success": 0.5, "by": f"evaluation {NAME}"}
    assert np.array_equal(load_checkpoint(best)[0]["a"], np.arange(3.0))
