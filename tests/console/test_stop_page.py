"""The STOP button and key in a real Chromium, on every page."""

import os
import re
import signal
from pathlib import Path

import pytest

import dovetail.console
from support.console_process import end_console, start_console
from support.live_arm import live_arm
from support.waiting import wait_until

PAGES = ("/", "/takeover", "/label", "/episodes", "/learning")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with live_arm(tmp_path_factory.mktemp("runs") / "one") as arm:
        opened = start_console(arm.run)
        yield arm, opened
        end_console(opened)


@pytest.fixture
def arm(live):
    """Without an emergency, and confirming its stops."""
    live[0].confirms = True
    live[0].stop.acknowledge()
    return live[0]


@pytest.fixture
def console(live):
    return live[1]


def shown(page, stage):
    """The text of the STOP message as soon as it has reached this stage."""
    page.wait_for_selector(f"#dt-stopped[data-stop={stage}]")
    return page.inner_text("#dt-stopped")


@pytest.mark.extended
@pytest.mark.parametrize("path", PAGES)
def test_escape_stops_all_arms_from_every_page(arm, console, page, path):
    console.enter(page, path)
    page.wait_for_function("window.dovetail.state !== null")
    page.keyboard.press("Escape")
    text = shown(page, "confirmed")
    assert text.startswith("stop confirmed by robot in ") and text.endswith(" ms")
    assert arm.stop.emergency
    page.wait_for_selector("#dt-arms [data-arm=stopped]")
    assert page.inner_text("#dt-arms [data-arm=source]") == "STOP by console, anonymous"


@pytest.mark.extended
def test_escape_stops_while_a_text_is_typed_and_while_the_help_is_open(arm, console, page):
    console.enter(page, "/episodes")
    page.focus("#dt-name")
    page.keyboard.press("Escape")
    wait_until(lambda: arm.stop.emergency)
    arm.stop.acknowledge()
    page.click("#dt-help-open")
    page.wait_for_timeout(300)
    page.keyboard.press("Escape")
    wait_until(lambda: arm.stop.emergency)


@pytest.mark.extended
def test_touch_stops_at_its_beginning(arm, console, browser):
    context = browser.new_context(has_touch=True, viewport={"width": 400, "height": 800})
    try:
        page = console.enter(context.new_page(), "/learning")
        page.locator("#dt-emergency").dispatch_event("pointerdown", {"pointerType": "touch"})
        wait_until(lambda: arm.stop.emergency)
        arm.stop.acknowledge()
        page.wait_for_timeout(300)
        page.tap("#dt-emergency")
        wait_until(lambda: arm.stop.emergency)
    finally:
        context.close()


@pytest.mark.extended
def test_missing_confirmation_sends_the_person_to_the_robots_own_stop(arm, console, page):
    arm.confirms = False
    console.enter(page)
    page.click("#dt-emergency")
    text = shown(page, "missing")
    assert text == "STOP NOT confirmed by robot: press the robot's own emergency stop"
    page.wait_for_selector("#dt-arms [data-arm=missing]")
    assert arm.stop.emergency


@pytest.mark.extended
def test_console_that_does_not_answer_is_reported(arm, console, page):
    console.enter(page)
    os.kill(console.process.pid, signal.SIGSTOP)
    try:
        page.keyboard.press("Escape")
        text = shown(page, "missing")
        assert "NOT confirmed (the console does not answer)" in text and "own emergency stop" in text
    finally:
        os.kill(console.process.pid, signal.SIGCONT)
    wait_until(lambda: arm.stop.emergency)  # it was delivered when the console continued


@pytest.mark.extended
def test_stop_needs_no_free_connection_of_the_browser(arm, console, page):
    """A browser has six connections to a server. All may wait for an answer, here the paused routes of the page."""
    console.enter(page)
    page.wait_for_function("window.dovetail.state !== null")
    page.route("**/api/stop*", lambda route: None)  # the request never leaves the browser
    page.keyboard.press("Escape")
    assert shown(page, "confirmed").startswith("stop confirmed by robot")
    assert arm.stop.emergency


def test_no_script_opens_a_dialog_of_the_browser():
    """It would stop all scripts of the page, and STOP and Esc with them."""
    folder = Path(dovetail.console.__file__).parent
    texts = {path.name: path.read_text() for path in folder.rglob("*") if path.suffix in (".py", ".js", ".html")}
    assert "ask.js" in texts
    dialogs = re.compile(r"(?<![\w.])(?:window\.)?(?:alert|confirm|prompt)\s*\(|\.showModal\s*\(")
    assert {name: found.group() for name, text in texts.items() if (found := dialogs.search(text))} == {}


def press_end_run(page, events):
    """Press "End run", so that the question is open; `events` gets every event that the page sends."""
    page.on("dialog", lambda dialog: (events.append("a dialog of the browser"), dialog.accept()))
    page.on(
        "request", lambda sent: events.append(sent.post_data_json["event"]) if "/api/event" in sent.url else None
    )
    page.wait_for_function("window.dovetail.state !== null")
    page.click('[data-event="stop"]')
    page.wait_for_selector(".dt-ask")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"


@pytest.mark.extended
@pytest.mark.parametrize("width", [1280, 390])  # a phone, too
@pytest.mark.parametrize("how", ["Escape", "click"])
def test_question_whether_to_end_the_run_leaves_stop_and_escape_working(arm, console, page, width, how):
    page.set_viewport_size({"width": width, "height": 800})
    console.enter(page)
    events = []
    press_end_run(page, events)
    page.click("#dt-emergency") if how == "click" else page.keyboard.press("Escape")
    wait_until(lambda: arm.stop.emergency)
    assert shown(page, "confirmed").startswith("stop confirmed by robot")
    page.wait_for_selector(".dt-ask", state="detached")
    assert events == []  # the run goes on


@pytest.mark.extended
def test_run_ends_only_after_yes(arm, console, page):
    console.enter(page)
    events = []
    press_end_run(page, events)
    page.keyboard.press("Enter")  # Cancel has the focus
    page.wait_for_selector(".dt-ask", state="detached")
    assert page.evaluate("document.activeElement.dataset.event") == "stop" and events == []
    page.click('[data-event="stop"]')
    with page.expect_response("**/api/event") as answer:
        page.click(".dt-ask .dt-main-button")
    assert answer.value.ok and events == ["stop"]
    page.wait_for_selector(".dt-ask", state="detached")
    assert not arm.stop.emergency


@pytest.mark.extended
def test_stop_button_is_free_while_the_help_is_open(arm, console, page):
    console.enter(page)
    page.click("#dt-help-open")
    page.click("#dt-emergency")
    wait_until(lambda: arm.stop.emergency)
