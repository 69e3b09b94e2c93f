"""Text from run folders, labels, prompts, names and servers is shown as text, in a real Chromium."""

import json
from dataclasses import replace

import pytest

from dovetail.core.specs import ArraySpec
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.queue import LabelQueue, Opinion, Reason
from dovetail.live.link import LiveLink
from support.console_process import end_console, start_console
from support.made_runs import ROBOT, label, made_episode, made_run

EVIL = '<img src=x onerror="window.hacked=1">\'"><script>window.hacked=1</script>{{7*7}}'
SHORT = "<img src=x onerror=hacked=1>"  # for fields with a short limit
PAGES = ("/", "/takeover", "/label", "/episodes", "/learning")
EVENTS = (
    {"event": "coach", "name": "a", "severity": EVIL, "message": EVIL, "try": EVIL},
    {"event": "episode", "id": EVIL, "env_steps": 10, "success": 1.0, "policy_version": 1},
    {"event": "episode", "id": [EVIL], "env_steps": EVIL, "success": {}},
    {"event": "evaluated", "name": EVIL, "version": EVIL, "env_steps": 10, "rate": 0.5, "low": 0.1, "high": 0.9},
    {"event": "evaluated", "name": EVIL, "version": 1, "env_steps": 10, "rate": EVIL, "episodes": EVIL},
    {"event": "best checkpoint", "success": 0.5, "by": EVIL},
    {"event": "labelled", "success": EVIL},
    {"event": "practice", "env_steps": {}},
)
ROLE = {"name": EVIL, "health": EVIL, "doing": EVIL, "problem": EVIL, "host": EVIL, "may_acknowledge": True}


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """An active run with hostile text wherever text can be."""
    folder = made_run(
        tmp_path_factory.mktemp("runs") / SHORT, made_episode("e0", task=EVIL, prompt=EVIL, operator=EVIL)
    )
    label(folder, "e0", labeler=EVIL, version=EVIL, why=EVIL)
    opinion = Opinion(labeler=EVIL, version=EVIL, success=True, confidence=0.5)
    LabelQueue(folder.labels / "queue").put("e0", [Reason.UNCERTAIN], opinions=[opinion], note=EVIL)
    (folder.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    camera = ArraySpec(shape=(12, 16, 3), dtype="uint8")
    robot = replace(ROBOT, name=EVIL, observation={**ROBOT.observation, EVIL: camera})
    link = LiveLink(folder.path, robot=robot, arm=SHORT)
    link.open()
    link.stop.press(SHORT)
    link.update(
        run=EVIL, phase=EVIL, fault=EVIL, roles=[ROLE], episode={"id": EVIL, "purpose": EVIL, "number": EVIL}
    )
    opened = start_console(folder.path)
    yield opened
    end_console(opened)
    link.close()
    assert EpisodeLog(folder.episodes).ids() == ["e0"]


def assert_only_text(page):
    assert page.evaluate("window.hacked") is None
    assert page.locator('img[src="x"]').count() == 0
    assert page.evaluate("[...document.scripts].some((one) => one.textContent === 'window.hacked=1')") is False


@pytest.mark.extended
@pytest.mark.parametrize("path", PAGES)
def test_hostile_text_is_shown_as_text_on_every_page(console, page, path):
    console.enter(page, path)
    page.wait_for_function("window.dovetail.state?.control === 'fault'")
    page.wait_for_timeout(1500)  # for everything that is loaded later
    assert SHORT in page.inner_text("header")
    assert SHORT in page.inner_text("#dt-arms")
    assert_only_text(page)


@pytest.mark.extended
def test_hostile_text_of_an_episode_is_shown_as_text(console, page):
    console.enter(page, "/episodes")
    page.click("tr[data-id=e0]")
    page.wait_for_selector("[data-episode=e0]")
    assert EVIL in page.inner_text(".dv-labels, [class*=dv-label]") or EVIL in page.inner_text("body")
    assert_only_text(page)
    console.enter(page, "/label")
    page.wait_for_selector("text=7*7")
    assert_only_text(page)


@pytest.mark.extended
def test_hostile_text_of_live_status_is_shown_as_text(console, page):
    console.enter(page)
    page.wait_for_selector("#dt-roles tbody tr")
    body = page.inner_text("body")
    assert body.count("{{7*7}}") >= 5  # fault, phase, advice, role
    assert_only_text(page)
