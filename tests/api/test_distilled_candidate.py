"""The gate for a distilled policy: it is asked once, a person may decide, and a killed process repeats no comparison."""

import threading
from types import SimpleNamespace

import pytest

from dovetail.api import deployment, distilled_candidate
from dovetail.api.distilled_candidate import offer
from dovetail.config.deploy import DeployConfig
from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.sequential_test import Answer
from dovetail.runs.deployment import DEPLOYMENT, Deployment
from dovetail.runs.folder import RunFolder
from support.waiting import wait_until

PERSON = DeployConfig(gate="person", max_pairs=30)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", load(["peg-insertion"])).path


@pytest.fixture
def candidate(tmp_path):
    return tmp_path / "second"


@pytest.fixture
def compared(monkeypatch):
    """Comparisons that were made. Success of deployed policy and candidate: 9 and 20 of 30."""
    made = []

    def compare(deployed, candidate, **options):
        made.append((deployed, candidate))
        score = [EpisodeScore(success=s, total_reward=float(s), duration_s=1.0) for s in (False, True)]
        scores = tuple((score[i < 9], score[i < 20]) for i in range(30))
        return SimpleNamespace(stopped=False, scores=scores, answer=Answer.NOT_WORSE)

    monkeypatch.setattr(deployment, "compare", compare)
    monkeypatch.setattr(
        deployment, "_pinned", lambda candidate, runs_dir: str(candidate / "weights/v00000001.json")
    )
    monkeypatch.setattr(distilled_candidate, "_POLL_S", 0.01)
    return made


@pytest.fixture
def offering(run, candidate):
    """`offer` in a thread, which waits for a person."""
    lines, results = [], []
    thread = threading.Thread(target=lambda: results.append(offer(run, candidate, PERSON, announce=lines.append)))

    def end():
        thread.join(10)
        return results[0]

    thread.start()
    wait_until(lambda: lines)
    yield SimpleNamespace(lines=lines, end=end)
    thread.join(10)


def test_comparison_deploys_a_candidate_that_is_not_worse_once(run, candidate, compared):
    decision = offer(run, candidate, DeployConfig(max_pairs=30))
    assert (decision["change"], decision["answer"], decision["num_pairs"]) == ("deployed", "not worse", 30)
    assert (decision["candidate"]["successes"], decision["candidate"]["episodes"]) == (20, 30)
    assert offer(run, candidate, DeployConfig(max_pairs=30)) == decision and len(compared) == 1


def test_person_approves_and_the_comparison_gives_the_expected_rate(run, candidate, compared, offering):
    waiting = Deployment.load(RunFolder.open(run))
    assert waiting.deployed.weights == str(run)  # not deployed, although it is not worse
    (line,) = offering.lines
    assert line.startswith(
        "second is 'not worse' after 30 pairs of episodes, and a person decides: dovetail deploy"
    )
    assert deployment.approve(run, by="Ada")
    assert (offering.end()["change"], offering.end()["answer"]) == ("deployed", "approved by Ada")
    state = deployment.deployment_of(run)
    assert state.deployed.weights == str(candidate / "weights/v00000001.json")
    assert state.deployed.expected_rate == pytest.approx(waiting.comparison.expected_rate)


def test_person_rejects(run, candidate, compared, offering):
    assert deployment.reject(run, by="Ada")
    assert (offering.end()["change"], offering.end()["answer"]) == ("rejected", "rejected by Ada")
    assert deployment.deployment_of(run).deployed.weights == str(run)
    with pytest.raises(UsageError, match="no candidate to reject"):
        deployment.reject(run)


def test_stopped_wait_continues_without_another_comparison(run, candidate, compared):
    with pytest.raises(Interrupted, match="waits for a person"):
        offer(run, candidate, PERSON, should_stop=lambda: True)
    deployment.approve(run)
    assert offer(run, candidate, PERSON)["change"] == "deployed"
    assert len(compared) == 1


def test_wait_ends_if_another_candidate_takes_its_place(run, candidate, compared):
    def propose_another():
        if compared and len(compared) == 1:
            deployment.deploy(run, run.with_name("third"), gate="person")
        return False

    with pytest.raises(UsageError, match=r"second is no longer the candidate of"):
        offer(run, candidate, PERSON, should_stop=propose_another)


def test_decision_of_an_older_version_counts(run, candidate, compared):
    """Before, `deployment.json` had no figures of the comparison with a decision."""
    state = Deployment.load(RunFolder.open(run))
    state.propose(str(candidate / "weights/v00000001.json"))
    state.decide(Answer.WORSE, rate=None)
    assert (run / DEPLOYMENT).is_file()
    assert offer(run, candidate, PERSON)["answer"] == "worse" and not compared
