"""Updates that are skipped on Ray: a line in the run's events, as inline. No Ray is needed to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.roles.learner import LearnerRole
from support.toy_run import TOY


class Broken:
    """Skips its first updates, and then breaks."""

    num_updates = num_warmup_updates = num_online_updates = num_skipped_updates = 0

    def warm_up(self, num_updates: int) -> dict[str, float]:
        self.num_updates = self.num_warmup_updates = num_updates
        self.num_skipped_updates = 3
        return {}

    def owed(self, env_steps: int) -> int:
        return 5

    def step(self, **settings: Any) -> dict[str, float]:
        self.num_skipped_updates = 4
        raise FailureError("learning failed")


class Store:
    def trained_steps(self) -> int:
        return 5


def test_warming_up_and_learning_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    folder = RunFolder.create(tmp_path / "r", load([tmp_path / "toy.yaml"], ["runtime=ray"]))
    role: Any = LearnerRole("learner", path=folder.path, store=None, weights=None)
    for name in ("_save", "_publish_now"):
        monkeypatch.setattr(role, name, lambda: None)
    role._learner, role._store, role._has_demos = Broken(), Store(), True
    try:
        assert role._learn_a_while()
        with pytest.raises(FailureError):
            role._learn_a_while()
    finally:
        role._learner = None
        role.close()
    told = [(event["in_all"], event["updates"]) for event in folder.events("skipped updates")]
    assert told == [(3, 20), (4, 20)]
