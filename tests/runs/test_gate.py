"""The gate of a run with a fake runtime: what is compared and deployed, requests of people, roll-backs, and kills."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Purpose
from dovetail.runs.deployment import Deployment
from dovetail.runs.deployment_request import REQUEST, Change, request_change
from dovetail.runs.folder import RunFolder
from dovetail.runs.gate import FIRST_RESET, Gate
from dovetail.runs.roles.robot import EpisodeResult
from dovetail.runs.status import RunStatus
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY


class PlantedRuntime:
    """Each version has a skill: reset number i succeeds if the skill is above the i-th random number."""

    def __init__(self, folder, skills, *, groups=(("robot",),)):
        self.status, self.groups = RunStatus(name="r"), groups
        self.store = DiskWeightStore(folder.weights)
        self.skills = dict(skills)  # by version
        self.played, self.served, self.stop_after = [], [], None
        self.numbers = np.random.default_rng(0).random(10_000)

    def publish(self):
        return self.store.publish({"actor": {"w": np.full(2, len(self.store.versions()), np.float32)}})

    def run_episodes(self, purpose, wanted, weights, *, new_actor=True):
        assert purpose is Purpose.EVAL and not new_actor
        if self.stop_after is not None and len(self.played) >= self.stop_after:
            raise Interrupted
        results = {}
        for group, indices in wanted.items():
            self.played += [(weights.version, index) for index in indices]
            results[group] = [self._result(weights.version, index, group[0]) for index in indices]
        return results

    def _result(self, version, index, robot):
        success = bool(self.skills[version] > self.numbers[index - FIRST_RESET])
        score = EpisodeScore(success=success, duration_s=1.0)
        return EpisodeResult(id=f"{robot}-{index}-{version}", score=score, robot=robot)

    @contextmanager
    def paused(self):
        yield self.newest_weights()

    def newest_weights(self):
        return self.store.load(max(self.store.versions()))

    def serve_pinned(self):
        self.served.append(self.store.pinned())

    def report_status(self): ...


@pytest.fixture
def make(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)

    def make(skills, *overrides, begin=True, groups=(("robot",),)):
        path = tmp_path / "r"
        settings = ("deploy.every_episodes=10", "deploy.max_pairs=100", *overrides)
        folder = (
            RunFolder.open(path)
            if path.exists()
            else RunFolder.create(path, load([tmp_path / "toy.yaml"], settings))
        )
        runtime = PlantedRuntime(folder, skills, groups=groups)
        if not runtime.store.versions():
            runtime.publish()
        gate = Gate(folder, folder.config.deploy, runtime)
        if begin:
            gate.begin()
        return folder, runtime, gate

    return make


def candidate(runtime, gate):
    """Publish one more version, and let it become due."""
    version = runtime.publish()
    runtime.status.episodes = Deployment.load(gate._folder).compare_at
    gate.check()
    return version


def changes(folder):
    return [(event["change"], event.get("version")) for event in folder.events("deployment")]


def test_first_weights_are_deployed_and_pinned(make):
    folder, runtime, gate = make({1: 0.5})
    assert (runtime.store.pinned(), gate.weights().version) == (1, 1)
    assert changes(folder) == [("first", 1)]


def test_better_candidate_is_deployed_and_served(make):
    folder, runtime, gate = make({1: 0.4, 2: 0.9})
    candidate(runtime, gate)
    state = Deployment.load(folder)
    assert (state.deployed.version, state.candidate, runtime.store.pinned()) == (2, None, 2)
    assert runtime.served[-1] == 2
    assert state.last["change"] == "deployed" and state.last["answer"] == "not worse"
    assert state.deployed.expected_rate == pytest.approx(state.last["candidate"]["low"])
    assert state.last["candidate"]["rate"] > state.last["deployed"]["rate"]


def test_planted_bad_candidate_is_rejected_and_never_acts(make):
    folder, runtime, gate = make({1: 0.9, 2: 0.2})
    candidate(runtime, gate)
    state = Deployment.load(folder)
    assert (state.deployed.version, runtime.store.pinned(), state.last["answer"]) == (1, 1, "worse")
    assert set(runtime.served) == {1}


def test_equal_candidate_needs_enough_pairs(make):
    """Both succeed always: the score (n * 0.1 - 0.5) / sqrt(n * 0.09) reaches 1.96 * sqrt(100 / n) at n = 64."""
    folder, runtime, gate = make({1: 1.0, 2: 1.0})
    candidate(runtime, gate)
    assert Deployment.load(folder).last["num_pairs"] == 64


def test_too_few_pairs_reject(make):
    folder, runtime, gate = make({1: 1.0, 2: 1.0}, "deploy.max_pairs=20")
    candidate(runtime, gate)
    last = Deployment.load(folder).last
    assert (last["change"], last["answer"], last["num_pairs"]) == ("rejected", "cannot tell", 20)


def test_pairs_share_resets_and_comparisons_do_not(make):
    _, runtime, gate = make({1: 0.9, 2: 0.1, 3: 0.1})
    candidate(runtime, gate)
    first = {(version, index) for version, index in runtime.played}
    assert {index for version, index in first if version == 1} == {
        index for version, index in first if version == 2
    }
    runtime.played.clear()
    candidate(runtime, gate)
    assert not {index for _, index in first} & {index for _, index in runtime.played}
    assert min(index for _, index in runtime.played) == FIRST_RESET + 100


def test_order_within_pairs_is_random(make):
    _, runtime, gate = make({1: 1.0, 2: 1.0})
    candidate(runtime, gate)
    firsts = [version for version, _ in runtime.played[::2]]
    assert 15 < firsts.count(1) < 49  # of 64


def test_nothing_is_compared_before_it_is_due_or_without_new_weights(make):
    _, runtime, gate = make({1: 0.5, 2: 0.5})
    runtime.status.episodes = 10
    assert gate.check() and not runtime.played  # the newest version is deployed
    runtime.publish()
    runtime.status.episodes = 19
    assert not gate.check() and not runtime.played
    runtime.status.episodes = 20
    gate.check()
    assert runtime.played


def test_stopped_comparison_continues_after_its_last_pair(make):
    folder, runtime, gate = make({1: 0.4, 2: 0.9})
    runtime.stop_after = 8
    with pytest.raises(Interrupted):
        candidate(runtime, gate)
    before = Deployment.load(folder)
    assert (before.candidate_version, len(before.comparison.pairs)) == (2, 4)
    _, again, gate = make({1: 0.4, 2: 0.9, 3: 0.0})
    again.publish()  # learned since: not what is compared
    gate.check()
    assert again.played[0][1] == FIRST_RESET + 4 and {version for version, _ in again.played} == {1, 2}
    after = Deployment.load(folder)
    assert after.deployed.version == 2 and after.last["num_pairs"] > 4
    assert [change for change, _ in changes(folder)] == ["first", "candidate", "deployed"]


def test_kill_between_file_and_event_repairs_pin_and_event(make):
    folder, runtime, gate = make({1: 0.4, 2: 0.9})
    candidate(runtime, gate)
    lines = (folder.path / "events.jsonl").read_text().splitlines()
    (folder.path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
    runtime.store.pin(1)
    _, again, _ = make({})
    assert again.store.pinned() == 2
    assert [change for change, _ in changes(folder)] == ["first", "candidate", "deployed"]


def test_versions_for_roll_backs_are_not_pruned(make):
    _, runtime, gate = make({1: 0.2, 2: 0.9})
    candidate(runtime, gate)
    for _ in range(10):
        runtime.publish()
    assert runtime.store.versions() == [1, 2, *range(8, 13)]


# ---- people


def test_person_approves_what_the_gate_would_reject(make):
    folder, runtime, gate = make({1: 0.9, 2: 0.2}, "deploy.gate=person")
    candidate(runtime, gate)
    state = Deployment.load(folder)
    assert (state.deployed.version, state.candidate_version, state.comparison.answer) == (1, 2, "worse")
    folder.lock()  # the run is active
    other = RunFolder.open(folder.path)
    assert not request_change(other, Change.APPROVE, seen=state.candidate, by="Ada")
    gate.check()
    state = Deployment.load(folder)
    assert (state.deployed.version, runtime.store.pinned(), runtime.served[-1]) == (2, 2, 2)
    assert state.last["answer"] == "approved by Ada" and not (folder.path / REQUEST).exists()
    assert state.deployed.expected_rate == pytest.approx(state.last["candidate"]["low"])


def test_person_gate_replaces_a_candidate_that_nobody_approved(make):
    folder, runtime, gate = make({1: 0.9, 2: 0.9, 3: 0.9}, "deploy.gate=person", "deploy.max_pairs=10")
    candidate(runtime, gate)
    candidate(runtime, gate)
    assert Deployment.load(folder).candidate_version == 3
    assert [change for change, _ in changes(folder)] == [
        "first", "candidate", "waits for a person", "rejected", "candidate", "waits for a person",
    ]  # fmt: skip


def test_roll_back_of_a_running_run_ends_its_comparison(make):
    folder, runtime, gate = make({1: 0.4, 2: 0.9, 3: 0.9})
    candidate(runtime, gate)
    folder.lock()
    deployed = Deployment.load(folder).deployed.weights
    request_change(RunFolder.open(folder.path), Change.ROLL_BACK, seen=deployed, by="Ada")
    runtime.publish()
    gate.check()
    state = Deployment.load(folder)
    assert (state.deployed.version, runtime.store.pinned(), runtime.served[-1]) == (1, 1, 1)
    assert state.last["reason"] == "Ada rolled it back"


def test_request_about_another_policy_is_refused(make):
    folder, runtime, gate = make({1: 0.9, 2: 0.9}, "deploy.gate=person", "deploy.max_pairs=10")
    candidate(runtime, gate)
    with pytest.raises(UsageError, match=r"the candidate is .*v00000002.json now, not v7"):
        request_change(folder, Change.APPROVE, seen="v7", by="Ada")
    with pytest.raises(UsageError, match="first policy deployed"):
        request_change(folder, Change.ROLL_BACK, seen="", by="Ada")
    folder.write_json(REQUEST, {"change": "approve", "seen": "v7", "by": "Ada"})  # it came too late
    gate.check()
    assert Deployment.load(folder).deployed.version == 1
    assert "not v7" in next(iter(folder.events("deployment refused")))["reason"]


def test_finished_run_is_changed_at_once(make):
    folder, runtime, gate = make({1: 0.9, 2: 0.2}, "deploy.gate=person")
    runtime.publish()
    gate.finish()
    seen = Deployment.load(folder).candidate
    assert request_change(folder, Change.APPROVE, seen=seen, by="Ada")
    assert (Deployment.load(folder).deployed.version, runtime.store.pinned()) == (2, 2)
    assert request_change(folder, Change.ROLL_BACK, seen=seen, by="Ada")
    assert runtime.store.pinned() == 1


# ---- roll-backs


def test_planted_drop_in_comparisons_rolls_back_and_compares_again(make):
    folder, runtime, gate = make({1: 0.6, 2: 0.95, 3: 0.1})
    candidate(runtime, gate)
    assert Deployment.load(folder).deployed.version == 2
    runtime.skills[2] = 0.0  # something broke that only this version needs
    version = candidate(runtime, gate)
    events = [event["change"] for event in folder.events("deployment")]
    assert events == ["first", "candidate", "deployed", "candidate", "rolled back", "rejected"]
    assert (Deployment.load(folder).deployed.version, runtime.served[-1]) == (1, 1)
    gate.check()  # at once, with the policy that acts now
    assert Deployment.load(folder).last["answer"] == "worse" and (1, FIRST_RESET + 200) in runtime.played
    assert version == 3


def test_arms_play_resets_in_parallel_and_groups_add_pairs(make):
    folder, runtime, gate = make({1: 1.0, 2: 1.0}, groups=(("left", "right"), ("small",)))
    candidate(runtime, gate)
    assert [index - FIRST_RESET for _, index in runtime.played[:3]] == [0, 1, 0]
    assert len({version for version, _ in runtime.played[:3]}) == 1
    assert Deployment.load(folder).last["num_pairs"] == 64


def test_foreign_policy_cannot_act_in_a_run(make):
    folder, _, _ = make({1: 0.5})
    state = Deployment.load(folder)
    state.propose("runs/other")
    state.approve()
    with pytest.raises(UsageError, match="this run cannot act with it"):
        make({})


# ---- the commands


def test_commands_ask_an_active_run_and_change_a_finished_one(make, tmp_path):
    from dovetail.api import deployment as api

    folder, runtime, gate = make({1: 0.9, 2: 0.2}, "deploy.gate=person")
    runtime.publish()
    gate.finish()
    folder.lock()
    assert not api.approve(folder.path)
    assert folder.read_json(REQUEST)["change"] == "approve"
    with pytest.raises(UsageError, match="its gate compares its own weights"):
        api.deploy(folder.path, folder.weights / "v00000002.json")
    folder.unlock()
    (folder.path / REQUEST).unlink()
    assert api.approve(folder.path) and runtime.store.pinned() == 2
    assert api.approve(folder.path, folder.weights / "v00000001.json") and runtime.store.pinned() == 1
    assert api.roll_back(folder.path) and api.roll_back(folder.path) and runtime.store.pinned() == 1
