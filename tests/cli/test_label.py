"""`dovetail label`: concurrent requests, and no episode is labeled twice after faults or interrupts."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.types import Episode, Observation, Outcome
from dovetail.labels.human import human_labels
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from support.chat_server import ChatServer, Question, bright
from support.command_line import Cli
from support.made_runs import label, made_episode, made_run
from support.tiny_vlm import make_tiny_vlm

TRUTH = (True, False, True, True, False, False)


def shot(number: int, *, done: bool, outcome: Outcome | None = None) -> Episode:
    """An episode whose images are bright if it succeeded."""
    outcome = outcome or (Outcome.SUCCESS if done else Outcome.TIMEOUT)
    plain = made_episode(f"e{number}", outcome=outcome)
    level = 200 + number if done else 20 + number  # different for each episode, to recognize repeated questions
    columns = dict(plain.segments[0].columns)
    columns["observation/front"] = np.full_like(columns["observation/front"], level)
    values = {**plain.last_observation.values, "front": np.full((12, 16, 3), level, np.uint8)}
    last = Observation(time_ns=plain.last_observation.time_ns, values=values)
    segment = dataclasses.replace(plain.segments[0], columns=columns, last_observation=last)
    return dataclasses.replace(plain, segments=(segment,))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(bright).running() as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    episodes = [shot(number, done=done) for number, done in enumerate(TRUTH)]
    return made_run(Path("runs/r"), *episodes)


def by_vlm(cli: Cli, server: ChatServer, *more: str) -> Any:
    settings = (f"url={server.url}", "backoff_s=0.001", "tries=2", "num_frames=2")
    return cli("label", "r", "--labeler", "vlm", *settings, *more)


def verdicts_of(run: RunFolder, labeler: str = "vlm") -> list[bool | None]:
    store = LabelStore(run.labels)
    found = []
    for number in range(len(TRUTH)):
        verdicts = [r.labels.success for r in store.history(f"e{number}") if r.labels.labeler == labeler]
        found.append(verdicts[-1] if verdicts else None)
    return found


def counts(run: RunFolder) -> list[str]:
    store = LabelStore(run.labels)
    labels = [store.current(f"e{number}") for number in range(len(TRUTH))]
    return [each.labeler if each else "-" for each in labels]


def test_episodes_are_labeled_concurrently(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    server.faults = ["slow"] * 3
    result = by_vlm(cli, server, "max_concurrent=3")
    assert result.code == 0, result.err
    assert verdicts_of(run) == list(TRUTH)
    assert counts(run) == ["vlm"] * 6
    assert server.most_at_once == 3
    assert "vlm labeled 6 episodes; 0 had its label already" in result.out


def test_labeled_episodes_are_skipped(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    by_vlm(cli, server, "--limit", "2")
    assert server.num_questions == 2
    assert "labeled 4 episodes; 2 had its label already" in by_vlm(cli, server).out
    assert server.num_questions == 6
    assert "labeled 0 episodes; 6 had its label already" in by_vlm(cli, server).out
    assert server.num_questions == 6
    by_vlm(cli, server, "num_frames=1")  # other frames, so another version of the labeler
    assert server.num_questions == 12


@pytest.mark.extended
def test_again_labels_every_episode(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    by_vlm(cli, server)
    server.answer = lambda seen: {**bright(seen), "success": True}
    result = by_vlm(cli, server, "--again")
    assert "labeled 6 episodes (3 changed the verdict)" in result.out
    assert verdicts_of(run) == [True] * 6
    assert server.num_questions == 12


def test_dry_run_labels_nothing(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    result = by_vlm(cli, server, "--dry-run", "--outcome", "success")
    assert result.code == 0
    assert "would label 3 episodes; 0 had its label already" in result.out
    assert server.num_questions == 0
    assert LabelStore(run.labels).ids() == []


@pytest.mark.extended
def test_an_opinion_does_not_become_the_current_label(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    assert cli("label", "r", "--labeler", "outcome").code == 0
    result = by_vlm(cli, server, "--opinion")
    assert verdicts_of(run) == list(TRUTH)
    assert counts(run) == ["outcome"] * 6
    assert " ".join(result.out.splitlines()[-1].split()) == "outcome vlm 6 3 3 0 0 100 % 1.00"
    by_vlm(cli, server)  # stored answers are used
    assert counts(run) == ["vlm"] * 6
    assert server.num_questions == 6


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["429", "500", "truncated", "nonsense", "silence", "wrong length"])
def test_no_wrong_labels_from_a_failing_server(cli: Cli, server: ChatServer, run: RunFolder, fault: str) -> None:
    """Failed episodes stay unlabeled; the next call labels them."""
    server.faults = [fault] * 4
    result = by_vlm(cli, server, "max_concurrent=1", "reward=progress", "--json")
    assert result.code == 1
    facts = json.loads(result.out)
    assert set(facts["failures"]) == {"e0", "e1"}
    assert verdicts_of(run) == [None, None, *TRUTH[2:]]
    assert by_vlm(cli, server, "reward=progress").code == 0
    assert verdicts_of(run) == list(TRUTH)


def test_stops_after_five_failures_in_a_row(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    server.faults = ["500"] * 1000
    result = by_vlm(cli, server, "max_concurrent=1")
    assert result.code == 1
    assert server.num_questions == 10  # five episodes, two tries each
    assert "stopped, because too many episodes failed in a row" in result.out
    assert "1 are left: run the same command again to continue" in result.out
    assert LabelStore(run.labels).ids() == []


def test_ctrl_c_keeps_finished_labels(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    def interrupt(seen: Question) -> dict[str, Any]:
        if len(server.questions) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return bright(seen)

    server.answer = interrupt
    result = by_vlm(cli, server, "max_concurrent=1")
    assert result.code == 130
    assert verdicts_of(run) == [True, False, None, None, None, None]
    assert "4 are left" in result.out
    assert by_vlm(cli, server, "max_concurrent=1").code == 0
    assert verdicts_of(run) == list(TRUTH)
    assert server.num_questions == 6


def test_a_person_can_label_at_the_same_time(cli: Cli, server: ChatServer, run: RunFolder) -> None:
    """Through another store object, as in another process. The person's label is current."""

    def meanwhile(seen: Question) -> dict[str, Any]:
        by_person = human_labels(
            "e0",
            num_steps=6,
            outcome=Outcome.SUCCESS,
            judgement=Outcome.FAILURE,
            by=f"anna{len(server.questions)}",
        )
        LabelStore(run.labels).add(by_person)
        return bright(seen)

    server.answer = meanwhile
    result = by_vlm(cli, server)
    assert result.code == 0
    assert counts(run) == ["human", *["vlm"] * 5]
    assert len(LabelStore(run.labels).history("e0")) == 7
    assert ["vlm", "human", "1"] in [line.split()[:3] for line in result.out.splitlines()]


def test_agreement_matches_values_computed_by_hand(cli: Cli, run: RunFolder) -> None:
    """Six episodes: the model calls four a success, a person three, both two. By hand: they agree on 3 of 6; chance on
    (4 * 3 + 2 * 3) / 36 = 0.5: kappa 0. Precision 2/4, recall 2/3."""
    for number, (model, person) in enumerate(
        zip((True, True, True, True, False, False), (True, True, False, False, True, False), strict=True)
    ):
        label(run, f"e{number}", success=model, labeler="vlm")
        label(run, f"e{number}", success=person, labeler="human", priority=100)
    result = cli("label", "r", "--agreement", "--json")
    assert result.code == 0
    (found,) = json.loads(result.out)["agreement"]
    assert found == {
        "first": "vlm",
        "second": "human",
        "num_episodes": 6,
        "both_success": 2,
        "both_failure": 1,
        "only_first": 2,
        "only_second": 1,
        "share": 0.5,
        "kappa": 0.0,
        "precision": 0.5,
        "recall": pytest.approx(2 / 3),
    }
    table = cli("label", "r", "--agreement").out.splitlines()
    assert table[0].split()[-2:] == ["precision", "recall"]
    assert " ".join(table[1].split()) == "vlm human 6 2 1 2 1 50 % 0.00 50 % 67 %"


def test_kappa_is_undefined_for_equal_verdicts(cli: Cli, run: RunFolder) -> None:
    assert "nothing to compare" in cli("label", "r", "--agreement").out
    label(run, "e0", labeler="vlm")
    label(run, "e0", labeler="human", priority=100)
    out = cli("label", "r", "--agreement").out
    assert " ".join(out.splitlines()[1].split()) == "vlm human 1 1 0 0 0 100 % - 100 % 100 %"
    assert "agreement means nothing" in out


@pytest.mark.extended
def test_an_untrained_model_folder_labels_nothing(cli: Cli, run: RunFolder, tmp_path: Path) -> None:
    folder = make_tiny_vlm(tmp_path / "tiny")
    settings = (f"model_folder={folder}", "max_tokens=16", "num_frames=2", "device=cpu")
    result = cli("label", "r", "--labeler", "vlm", *settings, "--limit", "2")
    assert result.code == 1
    assert result.out.count("the model's answer contains no JSON object with the question's id") == 2
    assert LabelStore(run.labels).ids() == []


def test_aborted_episodes_are_not_labeled(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judged = dataclasses.replace(shot(2, done=True), judgement=Outcome.ABORTED)
    run = made_run(Path("runs/r"), shot(0, done=True), shot(1, done=False, outcome=Outcome.ABORTED), judged)
    result = cli("label", "r", "--labeler", "outcome")
    assert result.code == 0
    assert "labeled 1 episodes; 0 had its label already, 2 were aborted and never train" in result.out
    assert LabelStore(run.labels).ids() == ["e0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "choose a labeler"),
        (["--agreement", "--labeler", "vlm"], "--agreement labels nothing"),
        (["--labeler", "vml"], "no labeler named 'vml'. Did you mean 'vlm'?"),
        (
            ["--labeler", "vlm", "num_frame=3"],
            "unknown key 'labels.0.num_frame'. Did you mean 'labels.0.num_frames'?",
        ),
        (["--labeler", "vlm", "fast"], "a setting should look like key=value, got 'fast'"),
        (["--labeler", "human"], "dovetail console"),
        (["--labeler", "vlm", "model=m", "cameras=[fornt]"], "no camera 'fornt'. Did you mean 'front'?"),
        (["--labeler", "outcome", "--purpose", "onlin"], "no purpose 'onlin'. Did you mean 'online'?"),
    ],
)
def test_wrong_use_is_refused(cli: Cli, run: RunFolder, arguments: list[str], message: str) -> None:
    result = cli("label", "r", *arguments)
    assert result.code == 2
    assert message in result.err
    assert LabelStore(run.labels).ids() == []


def test_label_by_a_person_is_refused_with_the_way_to_do_it(cli: Cli, run: RunFolder) -> None:
    result = cli("label", "r", "--labeler", "human")
    assert result.code == 2
    text = " ".join(result.err.split())
    assert "dovetail console runs/r" in text and "open it in Episodes, then press `l`" in text
