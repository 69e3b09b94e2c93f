"""Which online episodes count for the roll-back of the deployed policy."""

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.deployment import Deployed, Deployment
from dovetail.runs.folder import RunFolder
from dovetail.runs.watched_episodes import WatchedEpisodes
from dovetail.weights.store import DiskWeightStore
from support.made_runs import label, made_episode
from support.toy_run import TOY

NOT_COUNTED = {
    "helped": {"human": (1,)},
    "explored": {"deterministic": False},
    "unknown noise": {"deterministic": None},
    "other version": {"version": 8},
    "evaluation": {"purpose": Purpose.EVAL},
    "demonstration": {"purpose": Purpose.DEMO},
    "aborted": {"outcome": Outcome.ABORTED},
    "no success": {"has_success": False},
}


@pytest.fixture
def make(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)

    def make(*overrides):
        folder = RunFolder.create(
            tmp_path / "r", load([tmp_path / "toy.yaml"], ("deploy.gate=compare", *overrides))
        )
        state = Deployment.load(folder)
        state.earlier = [Deployed(weights="first", version=1)]
        state.deployed = Deployed(weights="v9", version=9, expected_rate=0.8)
        return folder, state

    return make


def add(folder, name, *, success=True, labeled=True, **facts):
    facts = {"version": 9, "deterministic": True, "images": False, "purpose": Purpose.ONLINE, **facts}
    EpisodeLog(folder.episodes).commit(made_episode(name, **facts))
    if labeled:
        label(folder, name, success=success)


@pytest.mark.parametrize("why", NOT_COUNTED)
def test_only_episodes_like_evaluations_count(make, why):
    folder, state = make()
    add(folder, "e0")
    add(folder, "e1", **NOT_COUNTED[why])
    WatchedEpisodes(folder).count(state, num_episodes=2)
    assert state.watched == ["e0"] and state.outcomes == [True]


def test_each_episode_counts_once_also_after_a_restart_and_late_labels(make):
    folder, state = make()
    add(folder, "e0", success=False)
    add(folder, "e1", labeled=False)
    watched = WatchedEpisodes(folder)
    watched.count(state, num_episodes=2)
    assert state.watched == ["e0"]
    label(folder, "e1", success=True)
    add(folder, "e2")
    watched.count(state, num_episodes=3)
    WatchedEpisodes(folder).count(state, num_episodes=3)  # another process
    assert (state.watched, state.outcomes) == (["e0", "e1", "e2"], [False, True, True])


def test_noise_counts_if_evaluations_have_it(make):
    folder, state = make("run.eval_noise=true")
    add(folder, "e0")
    add(folder, "e1", deterministic=False)
    WatchedEpisodes(folder).count(state, num_episodes=2)
    assert state.watched == ["e1"]


def test_noise_does_not_count_if_the_base_may_act_alone_at_first(make):
    folder, state = make("run.eval_noise=true", "actor.probe_share=0.5")
    add(folder, "e1", deterministic=False)
    WatchedEpisodes(folder).count(state, num_episodes=1)
    assert state.watched == []


def test_hidden_success_does_not_count(make):
    folder, state = make("labeling.hide_success=true")
    add(folder, "e0")
    WatchedEpisodes(folder).count(state, num_episodes=1)
    assert state.watched == []


def test_fifth_failure_rolls_back(make):
    """Evidence after 4 failures is (1.5^4 + 2^4 + 3^4 + 4^4) / 4 = 89.5, after 5 it is 326: the limit is 100."""
    folder, state = make()
    DiskWeightStore(folder.weights).publish({"actor": {"w": np.zeros(1, np.float32)}})
    for number in range(7):
        add(folder, f"e{number}", success=False)
    test = WatchedEpisodes(folder).count(state, num_episodes=7)
    assert test.alarm and test.num_episodes == 5
    assert state.deployed.version == 1 and state.watched == []
    assert DiskWeightStore(folder.weights).pinned() == 1
