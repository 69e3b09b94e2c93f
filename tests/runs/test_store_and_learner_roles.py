"""The store and learner roles, called directly on a toy run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import CheckpointError
from dovetail.core.types import Outcome, Purpose
from dovetail.labels.human import human_labels
from dovetail.learn.algorithms.imitation import Imitation
from dovetail.learn.checkpoint import checkpoint_facts, save_checkpoint
from dovetail.learn.learner import Learner
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.catch_up import catch_up
from dovetail.runs.checkpoints import DiskPublisher
from dovetail.runs.folder import RunFolder
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.roles.learner import RunLearner
from dovetail.runs.roles.robot import RobotRunner
from dovetail.runs.roles.store import EpisodeStore
from dovetail.runs.status import RunStatus
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY


class Roles:
    """The roles of one process, as the inline runtime builds them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.assembly = build_assembly(folder.config)
        fleet = Fleet(assembly=self.assembly, robots={"robot": self.assembly.robot.spec})
        policy = fleet.trainable()
        self.status, phases = RunStatus(name="r"), PhaseTimes()
        self.store = EpisodeStore(
            folder,
            fleet=fleet,
            policy=policy,
            labelers=self.assembly.labeler_chain(folder.labels),
            status=self.status,
            phases=phases,
        )
        self.publisher = DiskPublisher(folder.weights)
        self.learner = RunLearner(
            folder,
            fleet=lambda: fleet,
            store=self.store,
            replay=lambda policy: self.store.replay,
            publisher=self.publisher,
            policy=policy,
        )
        self.robot = RobotRunner(self.assembly, config_hash=folder.config_hash, spool=self.store.experience.spool)
        self.records = self.store.recover()

    def run(self, purpose: Purpose, num_episodes: int = 1) -> list[str]:
        ids = []
        for index in range(num_episodes):
            episode = self.robot.run(purpose, index, None)
            assert episode is not None
            self.store.commit(episode)
            self.store.add(episode)
            ids.append(episode.id)
        return ids

    def judge(self, episode_id: str, judgement: Outcome) -> None:
        info = self.store.experience.log.manifest(episode_id)
        labels = human_labels(
            episode_id, num_steps=info.num_steps, outcome=info.outcome, judgement=judgement, by="anna"
        )
        self.store.experience.labels.add(labels)

    def start(self, start_from: int | None = None) -> Learner:
        return self.learner.start(start_from, make=self.learner.make_learner)

    def close(self) -> None:
        self.assembly.close()
        self.store.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    started: list[Roles] = []

    def make(*overrides: str) -> Roles:
        (tmp_path / "toy.yaml").write_text(TOY)
        path = tmp_path / "r"
        if not path.exists():
            RunFolder.create(path, load([tmp_path / "toy.yaml"], ["run.demo_noise=0.0", *overrides]))
        if started:
            started.pop().close()
        started.append(Roles(RunFolder.open(path)))
        return started[-1]

    yield make
    for roles in started:
        roles.close()


# ---- store and ingest


def test_store_counts_demonstrations_and_online_episodes(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO, 2)
    (online,) = roles.run(Purpose.ONLINE)
    counts = roles.store.demo_counts()
    assert (counts.accepted, counts.accepted_or_pending, counts.tried) == (2, 2, 2)
    assert roles.store.demo_counts(["another"]).tried == 0
    num_steps = roles.store.experience.log.manifest(online).num_steps
    assert roles.store.env_steps() == roles.status.trained_steps == num_steps
    assert len(roles.store.demonstrated()["ee_pose"]) == sum(
        map(len, (d["ee_pose"] for d in roles.store.ingest.demos))
    )
    assert roles.store.ingest.is_labeled(online) and not roles.store.ingest.is_labeled("another")


def test_new_labels_change_counts_and_replay(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO, 2)
    (online,) = roles.run(Purpose.ONLINE)
    roles.store.apply_new_labels()  # its own
    roles.judge(online, Outcome.ABORTED)
    assert roles.store.apply_new_labels() == 1
    assert roles.status.trained_steps == 0 and roles.status.env_steps > 0
    assert online not in roles.store.replay.ids()
    assert roles.store.apply_new_labels() == 0
    demo = next(iter(roles.store.ingest._demos))
    roles.judge(demo, Outcome.FAILURE)
    assert roles.store.apply_new_labels() == 1
    assert roles.store.demo_counts().accepted == 1 and roles.store.demo_counts().tried == 2


def test_recovered_store_has_the_same_counts(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO, 2)
    roles.run(Purpose.ONLINE, 2)
    status, counts = roles.status, roles.store.demo_counts()
    again = make()
    assert again.store.demo_counts() == counts
    assert (again.status.env_steps, again.status.episodes) == (status.env_steps, status.episodes)
    assert len(again.records) == 4


# ---- learner


def test_cloned_weights_are_published_and_learning_starts_from_them(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO, 2)
    updates: list[int] = []
    version = roles.learner.clone(on_update=lambda: updates.append(1))
    assert version == 1 and len(updates) == 20
    roles.start(version)
    stored = DiskWeightStore(roles.folder.weights).load(version).components
    for name, arrays in roles.learner.policy.weights().items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, stored[name][key])


@pytest.mark.parametrize("decays", [False, True])
def test_learning_rate_of_cloning_falls_to_zero_only_with_lr_decay(
    make: Any, decays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    set_lr = Imitation._set_lr

    def record(self: Imitation, lr: float) -> None:
        rates.append(lr)
        set_lr(self, lr)

    monkeypatch.setattr(Imitation, "_set_lr", record)
    roles = make(f"learner.cloning.lr_decay={str(decays).lower()}")
    roles.run(Purpose.DEMO, 2)
    roles.learner.clone()
    assert len(rates) == 20 and rates[0] == 1e-3
    # 10 of 20 updates done: cos(pi / 2) = 0, so half of it; 19 of 20: 0.5 (1 + cos(0.95 pi)) = 0.00616
    assert (rates[10], rates[19]) == pytest.approx((5e-4, 6.156e-6) if decays else (1e-3, 1e-3), rel=1e-3)


def test_publisher_returns_weights_from_memory_and_the_pinned_version(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO)
    roles.start()
    roles.learner.publish()
    snapshot = roles.publisher.newest()
    assert roles.publisher.newest() is snapshot and snapshot.hashes == DiskWeightStore(
        roles.folder.weights
    ).hashes(1)
    DiskWeightStore(roles.folder.weights).pin(1)
    roles.learner.publish()
    assert (roles.publisher.newest().version, roles.publisher.served().version) == (2, 1)


def test_checkpoint_has_the_steps_taken_and_resumes(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO)
    (online,) = roles.run(Purpose.ONLINE)
    log = roles.store.experience.log
    roles.judge(online, Outcome.ABORTED)
    roles.store.apply_new_labels()
    learner = roles.start()
    learner.warm_up(20)
    roles.learner.publish()
    roles.learner.save()
    facts = checkpoint_facts(roles.folder.checkpoints / "last")
    assert facts["env_steps"] == log.manifest(online).num_steps  # although none of them is learned from
    assert facts["published"] == 20
    again = make()
    assert again.start().num_warmup_updates == 20
    assert again.learner.is_published


def test_checkpoint_of_another_config_is_refused(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO)
    save_checkpoint(roles.folder.checkpoints / "last", {"a": np.zeros(1)}, facts={"config_hash": "another"})
    with pytest.raises(CheckpointError, match="belongs to another config"):
        roles.start()


def test_restarted_learner_saves_its_last_checkpoint_as_the_best(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO)
    roles.start()
    roles.learner.save()
    roles.learner.learner = None
    roles.learner.save_best({"success": 0.5}, "evaluation at-00000050")
    last, best = (checkpoint_facts(roles.folder.checkpoints / name) for name in ("last", "best"))
    assert best == {**last, "success": 0.5, "by": "evaluation at-00000050"}


@pytest.mark.parametrize(("every", "due"), [(None, [True] * 4), (10, [True, False, True, True])])
def test_weights_are_due_after_publish_every_updates(make: Any, every: int | None, due: list[bool]) -> None:
    roles = make(f"learner.publish_every={'null' if every is None else every}")
    is_due = []
    for num_updates in (0, 9, 10, 25):
        learner = SimpleNamespace(num_updates=num_updates)
        is_due.append(roles.learner.is_due(learner))
        if is_due[-1]:
            roles.learner.published_at = num_updates
    assert is_due == due


# ---- catching up


def test_catch_up_does_the_owed_updates_episode_by_episode(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO, 2)
    roles.run(Purpose.ONLINE, 3)
    again = make()
    learner, published = again.start(), []
    held: list[int] = []
    catch_up(
        learner,
        again.records,
        folder=again.folder,
        experience=again.store.experience,
        status=again.status,
        on_update=lambda: held.append(len(again.store.replay.ids())),
        publish=lambda: published.append(learner.num_online_updates),
    )
    steps = [record.info.num_steps for record in again.records[2:]]
    assert learner.num_online_updates == sum(steps)
    assert published == [steps[0], steps[0] + steps[1]]
    assert held == [3] * steps[0] + [4] * steps[1] + [5] * steps[2]
    assert len(again.store.replay.ids()) == 5
    assert [event["updates"] for event in again.folder.events("catching up")] == [sum(steps)]


def test_catch_up_does_nothing_if_no_updates_are_owed(make: Any) -> None:
    roles = make()
    roles.run(Purpose.DEMO)
    learner = roles.start()
    catch_up(
        learner,
        [],
        folder=roles.folder,
        experience=roles.store.experience,
        status=roles.status,
        on_update=lambda: None,
        publish=lambda: None,
    )
    assert learner.num_online_updates == 0 and not list(roles.folder.events("catching up"))
