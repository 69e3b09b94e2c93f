"""The deployed policy: the gate, roll-backs by hand and by the sequential test, and what is stored."""

import pytest

from dovetail.config.load import load
from dovetail.config.trust import MARK
from dovetail.core.errors import PluginError, StoreError, UsageError
from dovetail.core.sequential_test import Answer
from dovetail.runs.deployment import DEPLOYMENT, Deployed, Deployment
from dovetail.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", load(["peg-insertion"]))


def changes(folder):
    return [event["change"] for event in folder.events("deployment")]


def test_at_first_the_run_itself_is_deployed(folder):
    assert Deployment.load(folder).deployed == Deployed(weights=str(folder.path))


def test_a_candidate_that_is_not_worse_is_deployed_and_stored(folder):
    deployment = Deployment.load(folder)
    deployment.propose("second")
    assert deployment.decide(Answer.NOT_WORSE, rate=0.9)
    again = Deployment.load(folder)
    assert again.deployed == Deployed(weights="second", expected_rate=0.9)
    assert [one.weights for one in again.earlier] == [str(folder.path)]
    assert changes(folder) == ["candidate", "deployed"]


@pytest.mark.parametrize("answer", [Answer.WORSE, Answer.CANNOT_TELL])
def test_any_other_answer_rejects_it(folder, answer):
    deployment = Deployment.load(folder)
    deployment.propose("bad")
    assert not deployment.decide(answer, rate=0.1)
    again = Deployment.load(folder)
    assert (again.deployed.weights, again.candidate) == (str(folder.path), None)
    assert changes(folder) == ["candidate", "rejected"]


def test_failures_without_help_roll_it_back(folder):
    """Evidence after 4 failures is (1.5^4 + 2^4 + 3^4 + 4^4) / 4 = 89.5, after 5 it is 326: the limit is 100."""
    deployment = Deployment.load(folder)
    deployment.propose("second")
    deployment.decide(Answer.NOT_WORSE, rate=0.8)
    for _ in range(4):
        assert not deployment.observe(success=False).alarm
    deployment = Deployment.load(folder)  # another process goes on
    assert deployment.observe(success=False).alarm
    assert Deployment.load(folder).deployed.weights == str(folder.path)
    assert changes(folder)[-1] == "rolled back"
    assert (
        list(folder.events("deployment"))[-1]["reason"]
        == "0 of 5 episodes without help succeeded, at least 80% were expected"
    )


def test_a_person_approves_and_rolls_back(folder):
    deployment = Deployment.load(folder)
    deployment.propose("second")
    deployment.approve()
    assert deployment.observe(success=False) is None  # without a comparison, no rate is expected
    deployment.roll_back("a person rolled it back")
    assert deployment.deployed.weights == str(folder.path)
    with pytest.raises(UsageError, match="the first policy deployed"):
        deployment.roll_back("again")


def test_wrong_calls_and_files_are_one_line_errors(folder):
    deployment = Deployment.load(folder)
    with pytest.raises(UsageError, match="is deployed already"):
        deployment.propose(str(folder.path))
    with pytest.raises(UsageError, match="there is no candidate"):
        deployment.decide(Answer.NOT_WORSE, rate=None)
    folder.write_json(DEPLOYMENT, {"deployed": 3})
    with pytest.raises(StoreError, match="is damaged"):
        Deployment.load(folder)


STATE = {"deployed": {"weights": "a", "expected_rate": 0.5}, "earlier": [], "candidate": None, "outcomes": []}


@pytest.mark.parametrize(
    "change",
    [
        {"deployed": {"weights": 3, "expected_rate": None}},
        {"deployed": {"weights": "\x1b[31m", "expected_rate": None}},
        {"deployed": {"weights": "", "expected_rate": None}},
        {"deployed": {"weights": "x" * 5000, "expected_rate": None}},
        {"deployed": {"weights": "a", "expected_rate": "high"}},
        {"deployed": {"weights": "a", "expected_rate": float("nan")}},
        {"deployed": {"weights": "a", "expected_rate": 2}},
        {"earlier": [3]},
        {"earlier": 3},
        {"candidate": ["a"]},
        {"outcomes": ["yes"]},
        {"outcomes": {}, "earlier": "ab"},
    ],
)
def test_values_of_other_types_are_damage(folder, change):
    folder.write_json(DEPLOYMENT, STATE | change)
    with pytest.raises(StoreError, match="is damaged"):
        Deployment.load(folder)


@pytest.mark.parametrize("place", ["deployed", "earlier"])
def test_folder_from_elsewhere_names_no_weights_outside_it(folder, tmp_path, place):
    """`deploy --watch` would move the arm of another run, which the user did not name."""
    other = {"weights": str(tmp_path / "own-run"), "expected_rate": None}
    folder.write_json(DEPLOYMENT, STATE | {place: other if place == "deployed" else [other]})
    (folder.path / MARK).unlink()
    config = folder.path / "config.yaml"
    config.write_text(config.read_text() + "# copied\n")  # nothing that this process has made
    with pytest.raises(PluginError, match="names weights outside it"):
        Deployment.load(folder)


def test_folder_from_elsewhere_may_name_its_own_weights(folder):
    inside = str(folder.path / "weights" / "v00000003.json")
    folder.write_json(DEPLOYMENT, STATE | {"deployed": {"weights": inside, "expected_rate": 0.9}})
    (folder.path / MARK).unlink()
    config = folder.path / "config.yaml"
    config.write_text(config.read_text() + "# copied\n")
    assert Deployment.load(folder).deployed.weights == inside
