"""Candidate and deployed policy on the page Learning, in a real Chromium: figures, approval, roll-back, and STOP first."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.figures import EpisodeScore
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import Kind, RunStop
from dovetail.runs.deployment import Deployment
from dovetail.runs.deployment_request import REQUEST
from dovetail.runs.folder import RunFolder
from dovetail.runs.paired_comparison import PairedComparison, PlayedPair
from dovetail.weights.store import DiskWeightStore
from support.made_runs import ROBOT
from support.page_audit import SIZES, audit, new_context
from support.toy_run import TOY
from support.waiting import wait_until


def pair(number, deployed, candidate):
    scores = tuple(EpisodeScore(success=success, duration_s=1.0) for success in (deployed, candidate))
    return PlayedPair(ids=(f"a{number}", f"b{number}"), scores=scores)


@pytest.fixture
def run(tmp_path):
    """Version 2 is deployed, after version 1. Version 3 is compared with it: 9 and 12 successes in 15 pairs."""
    (tmp_path / "toy.yaml").write_text(TOY)
    folder = RunFolder.create(tmp_path / "lab", load([tmp_path / "toy.yaml"], ("deploy.gate=person",)))
    store = DiskWeightStore(folder.weights)
    for number in range(3):
        store.publish({"actor": {"w": np.full(2, number, np.float32)}})
    state = Deployment.load(folder)
    state.begin(1, compare_at=10)
    state.propose_version(2, PairedComparison(number=0, max_pairs=40, margin=10.0))
    state.add_pairs(state.comparison.with_pairs([pair(number, number % 2 == 0, True) for number in range(40)]))
    state.approve()
    for number in range(20):
        state.observe(success=number % 10 > 0, episode_id=f"o{number}")
    pairs = [pair(number, number < 9, number < 12) for number in range(15)]
    state.propose_version(3, PairedComparison(number=1, max_pairs=40, margin=10.0).with_pairs(pairs))
    return folder


@pytest.fixture
def open_page(browser):
    contexts = []

    def open_page(size="desktop", **other):
        contexts.append(new_context(browser, size, **other))
        return contexts[-1].new_page()

    yield open_page
    for context in contexts:
        context.close()


def card(page):
    page.wait_for_selector("#dt-deployment .dt-policy")
    return page.locator("#dt-deployment").inner_text()


def press(page, change):
    page.click(f'#dt-deployment [data-change="{change}"]')
    page.wait_for_selector("#dt-deployment .dt-main-button")


def says(page, text):
    page.wait_for_function("text => document.getElementById('dt-deployment').innerText.includes(text)", arg=text)


def test_both_policies_with_their_evidence(run, open_console, open_page):
    page = open_console(run.path).enter(open_page(), "/learning")
    text = card(page)
    assert "version 2" in text and "version 3" in text
    assert "90 %\nwithout help, 20 episodes\n95 %: 70 % to 97 %" in text  # Wilson interval of 18 in 20
    assert "60 %\nin this comparison, 15 episodes" in text and "80 %\nin this comparison, 15 episodes" in text
    assert "Candidate minus deployed: +20 points" in text and "after 15 of at most 40 pairs" in text
    assert "Answer: cannot tell yet" in text and "A roll-back returns to version 1" in text
    assert "Evidence against it" in text and "at 100 it is rolled back automatically" in text
    assert page.locator(".dt-pin").count() == 0  # a pin would bypass the gate
    assert "Version 2 is deployed: the gate decides" in page.inner_text(".dt-note")


def test_approve_asks_once_more_and_changes_a_finished_run(run, open_console, open_page):
    page = open_console(run.path).enter(open_page(), "/learning")
    card(page)
    press(page, "approve")
    assert Deployment.load(run).deployed.version == 2
    page.click("#dt-deployment >> text=Cancel")
    assert page.locator("#dt-deployment .dt-main-button").count() == 0
    press(page, "approve")
    assert "Deploy version 3? It acts from the next episode on." in card(page)
    page.click("#dt-deployment >> text=Yes, deploy")
    says(page, "Done.")
    state = Deployment.load(run)
    assert (state.deployed.version, DiskWeightStore(run.weights).pinned()) == (3, 3)
    press(page, "roll back")
    page.click("#dt-deployment >> text=Yes, roll back")
    says(page, "Done.")
    assert DiskWeightStore(run.weights).pinned() == 2
    changes = [event["change"] for event in run.events("deployment")]
    assert changes[-2:] == ["deployed", "rolled back"]


def test_running_run_gets_a_request(run, open_console, open_page):
    run.lock()
    page = open_console(run.path).enter(open_page(), "/learning")
    card(page)
    press(page, "roll back")
    page.click("#dt-deployment >> text=Yes, roll back")
    says(page, "The run does this between two episodes.")
    says(page, "Asked for: roll back")
    assert page.locator("#dt-deployment button:disabled").count() == 2
    request = run.read_json(REQUEST)
    assert (request["change"], request["seen"]) == ("roll back", Deployment.load(run).deployed.weights)
    assert Deployment.load(run).deployed.version == 2  # the run applies it


def test_question_ends_when_the_policies_change(run, open_console, open_page):
    page = open_console(run.path).enter(open_page(), "/learning")
    card(page)
    press(page, "approve")
    state = Deployment.load(run)
    state.withdraw()
    says(page, "The policies have changed. Look again.")
    assert page.locator("#dt-deployment .dt-main-button").count() == 0


def test_stop_works_while_the_page_asks(run, open_console, open_page):
    with RunStop.create(run.path) as stop:
        link = LiveLink(run.path, robot=ROBOT, stop=stop, arm="robot")
        link.open()
        page = open_console(run.path).enter(open_page(), "/learning")
        card(page)
        press(page, "approve")
        page.keyboard.press("Escape")
        wait_until(lambda: any(one.kind is Kind.PRESS for one in stop.records()))
        link.close()
    assert Deployment.load(run).deployed.version == 2


def test_request_without_the_token_is_refused(run, open_console):
    import httpx

    console = open_console(run.path)
    body = {"change": "approve", "seen": Deployment.load(run).candidate}
    assert httpx.post(f"{console.address}api/deployment", json=body).status_code in (401, 403)
    assert Deployment.load(run).deployed.version == 2
    wrong = httpx.post(f"{console.address}api/deployment", json={**body, "seen": "v9"}, headers=console.headers)
    assert wrong.status_code == 400 and "Look again" in wrong.json()["detail"]
    strange = httpx.post(f"{console.address}api/deployment", json={**body, "change": "x"}, headers=console.headers)
    assert strange.status_code == 422


def test_run_without_a_deployment_shows_no_card(console, open_page):
    page = console.enter(open_page(), "/learning")
    page.wait_for_timeout(1000)
    assert not page.locator("#dt-deployment").is_visible()


@pytest.mark.parametrize(
    "size", ["phone", *(pytest.param(one, marks=pytest.mark.extended) for one in SIZES if one != "phone")]
)
def test_card_fits_the_screen_while_it_asks(run, open_console, open_page, size, tmp_path):
    console = open_console(run.path)
    for scheme in ("light", "dark"):
        page = console.enter(open_page(size, color_scheme=scheme), "/learning")
        card(page)
        press(page, "approve")
        assert audit(page) == []
        page.screenshot(path=tmp_path / f"deployment-{size}-{scheme}.png")


def test_hostile_names_are_shown_as_text_and_damaged_files_as_one_line(run, open_console, open_page):
    evil = '<img src=x onerror="window.hacked=1">'
    state = Deployment.load(run)
    state.propose(evil)
    state.approve(by=evil)
    state.propose(f"{evil}{evil}")
    page = open_console(run.path).enter(open_page(), "/learning")
    assert "onerror" in card(page)
    assert page.evaluate("window.hacked") is None and page.locator('img[src="x"]').count() == 0
    data = state.to_json()
    data["comparison"] = {"number": 0, "max_pairs": 0, "margin": "x", "num_resets": 0, "pairs": []}
    data["deployed"]["expected_rate"] = "high"
    run.write_json("deployment.json", data)
    says(page, "is damaged: ValueError")
    run.write_json("deployment.json", {"deployed": 3})
    says(page, "is damaged")
