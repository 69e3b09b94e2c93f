"""The learner's actor without Ray: when it publishes, saves and reports skipped updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.learn.checkpoint import checkpoint_facts, load_checkpoint, save_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.roles.handles import Progress
from dovetail.runtime.ray.roles.learner import LearnerRole
from support.toy_run import TOY


class FakeLearner:
    """Owes one update per step, and does at most `updates_per_slice` of them at once."""

    updates_per_slice = 1000

    healthy = True
    num_warmup_updates = num_online_updates = num_skipped_updates = 0
    sample_request = SimpleNamespace(waits=False)

    @property
    def num_updates(self) -> int:
        return self.num_warmup_updates + self.num_online_updates

    def owed(self, env_steps: int) -> int:
        return env_steps - self.num_online_updates

    def warm_up(self, num_updates: int, *, on_update: Any) -> dict[str, float]:
        self.num_warmup_updates, self.num_skipped_updates = num_updates, 3
        return {}

    def step(self, *, env_steps: int, on_update: Any, enough: Any) -> dict[str, float]:
        for _ in range(min(self.owed(env_steps), self.updates_per_slice)):
            self.num_online_updates += 1
            on_update()
        return {}

    def take_seconds(self) -> dict[str, float]:
        return {"updating": 1.0}


class FakeStore:
    def __init__(self) -> None:
        self.now = Progress(env_steps=0, trained_steps=0, num_trained_episodes=0)
        self.learned_updates: list[int] = []

    def progress(self, **_: Any) -> Progress:
        return self.now

    def learned(self, updates: int, **_: Any) -> None:
        self.learned_updates.append(updates)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    roles: list[Any] = []

    def make(*overrides: str) -> Any:
        (tmp_path / "toy.yaml").write_text(TOY)
        folder = RunFolder.create(tmp_path / "r", load([tmp_path / "toy.yaml"], ["runtime=ray", *overrides]))
        role: Any = LearnerRole("learner", path=folder.path, store=None, weights=None)
        role._learner, role._store, role.published = FakeLearner(), FakeStore(), []

        def publish() -> None:
            role.published.append(role._learner.num_updates)
            role._run_learner.published_at = role._learner.num_updates

        monkeypatch.setattr(role._run_learner, "publish", publish)
        monkeypatch.setattr(role, "_save", lambda: None)
        roles.append((role, folder))
        return role, folder

    yield make
    for role, _ in roles:
        role._learner = None
        role.close()


def learn(role: Any, *, env_steps: int, num_episodes: int) -> None:
    role._store.now = Progress(env_steps=env_steps, trained_steps=env_steps, num_trained_episodes=num_episodes)
    role._learns.set()
    role._learn_a_while()
    role._learns.clear()


def test_weights_are_published_after_the_updates_of_each_episode(make: Any) -> None:
    role, _ = make()
    learn(role, env_steps=30, num_episodes=1)
    learn(role, env_steps=70, num_episodes=2)
    learn(role, env_steps=80, num_episodes=2)  # streamed steps of an episode that is still running
    learn(role, env_steps=100, num_episodes=3)
    assert role.published == [30, 70, 100]


def test_weights_are_published_once_all_updates_of_an_episode_are_done(make: Any) -> None:
    role, _ = make()
    learn(role, env_steps=0, num_episodes=0)
    role._learner.updates_per_slice, role.published = 20, []
    for _ in range(3):  # 20, 40, 50 updates
        learn(role, env_steps=50, num_episodes=1)
    assert role.published == [50]
    learn(role, env_steps=100, num_episodes=2)
    learn(role, env_steps=150, num_episodes=3)  # the learner is behind: it does not wait for the last update
    assert role.published == [50, 90]


def test_publish_every_counts_updates(make: Any) -> None:
    role, _ = make("learner.publish_every=40")
    learn(role, env_steps=30, num_episodes=1)
    learn(role, env_steps=100, num_episodes=2)
    assert role.published == [1, 40, 80]


def test_warm_up_and_online_learning_report_skipped_updates(make: Any) -> None:
    role, folder = make()
    role._num_warmup_updates = 20
    role._learns.set()
    assert role._learn_a_while()

    def step(**_: Any) -> None:
        role._learner.num_skipped_updates = 4
        raise FailureError("learning broke")

    role._learner.step = step
    role._store.now = Progress(env_steps=5, trained_steps=5, num_trained_episodes=1)
    with pytest.raises(FailureError):
        role._learn_a_while()
    assert [(event["in_all"], event["updates"]) for event in folder.events("skipped updates")] == [
        (3, 20),
        (4, 20),
    ]


def test_store_that_restarted_gets_the_number_of_updates_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    role, _ = make()
    learn(role, env_steps=30, num_episodes=1)
    num_reports = len(role._store.learned_updates)
    role._reported_s -= 10.0
    learn(role, env_steps=30, num_episodes=1)
    assert role._store.learned_updates[num_reports:] == [30]


def test_restarted_learner_saves_its_checkpoint_as_the_best(make: Any) -> None:
    """A learner that is killed during an evaluation learns again only after it."""
    role, folder = make()
    role._learner = None
    last = {"env_steps": 60, "config_hash": folder.config_hash, "published": 80}
    save_checkpoint(folder.checkpoints / "last", {"a": np.arange(3.0)}, facts=last)
    role.save_best({"success": 0.5}, "evaluation at-00000050")
    best = folder.checkpoints / "best"
    assert checkpoint_facts(best) == {**last, "success": 0.5, "by": "evaluation at-00000050"}
    assert np.array_equal(load_checkpoint(best)[0]["a"], np.arange(3.0))
