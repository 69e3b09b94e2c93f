"""Watch, take over, release and stop a real run with a simulated arm, in a real Chromium."""

import json

import pytest

from dovetail.core.types import Outcome, Purpose, Source
from dovetail.episodes.log import EpisodeLog
from support.console_process import end_console, start_console
from support.cube_pusher import CubePusher
from support.live_run import end_run, start_run, until
from support.takeover_page import has_control, read_events, read_state, resumes, send_event, take_over


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The console of a run that waits for a demonstration."""
    runs = tmp_path_factory.mktemp("runs")
    process = start_run(runs)
    try:
        console = start_console(runs / "arm")
        yield console
        end_console(console)
    finally:
        end_run(process)


@pytest.mark.extended
def test_live_page_shows_images_and_that_the_run_is_paused(arm, page, tmp_path):
    until(has_control(arm, "paused"), what="the demonstration to wait")
    arm.enter(page)
    page.wait_for_function("document.querySelector('canvas')?.dataset.frames >= 1")
    assert page.inner_text("#dt-in-control b") == "Waiting for you"
    assert page.inner_text("#dt-prompt") == "push the cube onto the round mark"
    pixels = page.evaluate(
        "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 99, 99).data]"
    )
    assert len(set(pixels)) > 10, "the image is blank"
    page.screenshot(path=tmp_path / "live.png")


@pytest.mark.extended
def test_demonstration_by_keyboard_is_recorded(arm, page, tmp_path):
    take_over(arm, page)
    until(has_control(arm, "human"), what="the operator to drive")
    pusher, log = CubePusher(page), EpisodeLog(arm.run / "episodes")

    def push():
        if (
            page.inner_text("#dt-hold b") == "Hold to drive"
        ):  # on a busy machine messages come late, and the arm holds
            page.keyboard.up("Space")
            page.keyboard.down("Space")
        pusher.step()
        return log.ids()

    until(push, what="the cube to lie on the mark", timeout_s=150)
    pusher.release_keys()
    page.screenshot(path=tmp_path / "takeover.png")
    page.keyboard.up("Space")
    until(has_control(arm, "paused"), what="the evaluation to wait, because the switch was still held")
    page.keyboard.press("c")
    until(has_control(arm, "policy", "idle"), what="the policy to act after start")
    episode = log.load(log.ids()[0])
    assert episode.outcome is Outcome.SUCCESS and episode.purpose is Purpose.DEMO
    assert (episode.column("source") == Source.HUMAN).all() and len(episode) > 10


@pytest.mark.extended
def test_images_arrive_during_online_learning(arm, page):
    until(
        lambda: (now := read_state(arm)) and now["episode"].get("purpose") == "online",
        what="online learning to start",
    )
    arm.enter(page)
    page.wait_for_function("+document.querySelector('canvas')?.dataset.frames >= 20")
    assert page.get_attribute("#dt-in-control", "data-control") in ("policy", "idle")


@pytest.mark.extended
def test_second_driver_waits_until_the_first_releases(arm, browser, page):
    arm.enter(page, "/takeover")
    page.fill("#dt-name", "Ada")
    page.locator("#dt-name").dispatch_event("change")
    context = browser.new_context()
    try:
        other = context.new_page()
        arm.enter(other, "/takeover")  # before Ada drives: on a busy machine a page that opens delays her messages
        other.wait_for_selector("body[data-drives]")
        take_over(arm, page)
        until(lambda: (now := read_state(arm)) and now["driver"] == "Ada", what="Ada to drive")
        other.keyboard.down("Space")
        other.wait_for_selector("text=Ada is driving")
        assert read_state(arm)["driver"] == "Ada"
        assert other.inner_text("#dt-hold b") == "Hold to drive"
        other.keyboard.up("Space")
    finally:
        context.close()
    page.keyboard.up("Space")
    until(lambda: resumes(arm), what="the policy to continue")


@pytest.mark.extended
def test_tab_closed_while_driving_leaves_the_arm_holding(arm, browser):
    context = browser.new_context()
    page = context.new_page()
    take_over(arm, page)
    page.keyboard.down("w")
    until(has_control(arm, "human"), what="the operator to drive")
    page.close()
    context.close()
    held = until(has_control(arm, "holding"), what="the arm to hold")
    assert "lost" in held["reason"]
    still = read_state(arm)["values"]["ee_pose"][:3]
    until(
        lambda: read_state(arm)["health"]["ticks"] > held["health"]["ticks"] + 5 or read_state(arm)["step"],
        what="some ticks",
    )
    assert read_state(arm)["control"] == "holding"
    assert max(abs(a - b) for a, b in zip(still, read_state(arm)["values"]["ee_pose"][:3], strict=True)) < 0.01
    send_event(arm, "start")
    until(has_control(arm, "policy", "idle"), what="the policy to continue after start")


@pytest.mark.extended
def test_lost_focus_leaves_the_arm_holding(arm, page):
    take_over(arm, page)
    until(has_control(arm, "human"), what="the operator to drive")
    page.evaluate("window.dispatchEvent(new Event('blur'))")
    until(has_control(arm, "holding"), what="the arm to hold")
    page.keyboard.up("Space")
    assert read_state(arm)["control"] == "holding"  # releasing the key has no effect: the page lost the arm before
    page.keyboard.press("c")
    until(has_control(arm, "policy", "idle"), what="the policy to continue")


@pytest.mark.extended
def test_on_screen_sticks_drive_the_arm(arm, page):
    arm.enter(page, "/takeover")
    page.wait_for_selector("body[data-drives]")
    page.wait_for_function("window.dovetail.state?.may_drive")
    box = page.locator("#dt-stick-left").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    now = until(has_control(arm, "human"), what="the operator to drive")
    before = now["values"]["ee_pose"][0]
    until(
        lambda: read_state(arm)["values"]["ee_pose"][0] > before + 0.01, what="the arm to move away from its base"
    )
    page.mouse.up()
    until(lambda: resumes(arm), what="the policy to continue")


_GAMEPAD = """
window.pad = { id: 'a pad', connected: true, axes: [0, 0, 0, 0], buttons: [] };
for (let i = 0; i < 16; i++) window.pad.buttons.push({ pressed: false });
navigator.getGamepads = () => [window.pad];
"""


@pytest.mark.extended
def test_gamepad_drives_while_its_shoulder_button_is_held(arm, page):
    page.add_init_script(_GAMEPAD)
    arm.enter(page, "/takeover")
    page.wait_for_selector("body[data-drives]")
    page.evaluate("dispatchEvent(Object.assign(new Event('gamepadconnected'), { gamepad: window.pad }))")
    page.wait_for_function("window.dovetail.state?.may_drive")
    page.evaluate("window.pad.axes[1] = -1; window.pad.buttons[5].pressed = true")
    before = until(has_control(arm, "human"), what="the operator to drive")["values"]["ee_pose"][0]
    until(
        lambda: read_state(arm)["values"]["ee_pose"][0] > before + 0.01, what="the arm to move away from its base"
    )
    page.evaluate("window.pad.buttons[5].pressed = false")
    until(lambda: resumes(arm), what="the policy to continue")
    page.evaluate("window.pad.axes[1] = 0; window.pad.buttons[4].pressed = true")
    until(has_control(arm, "human"), what="the operator to drive again")
    page.evaluate("window.pad.axes[1] = -1; window.pad.timestamp = performance.now() - 5000")  # out of range
    until(has_control(arm, "holding"), what="the arm to hold")
    page.evaluate("window.pad.timestamp = undefined")
    page.evaluate("window.pad.buttons[4].pressed = false")
    page.wait_for_timeout(200)
    assert read_state(arm)["control"] == "holding"
    page.evaluate("window.pad.buttons[4].pressed = true")
    until(has_control(arm, "human"), what="the operator to drive after a new press")
    page.evaluate("window.pad.connected = false; dispatchEvent(new Event('gamepaddisconnected'))")
    until(has_control(arm, "holding"), what="the arm to hold")
    page.keyboard.press("c")
    until(has_control(arm, "policy", "idle"), what="the policy to continue")


@pytest.mark.extended
def test_emergency_key_stops_the_arm_until_it_is_acknowledged(arm, page, tmp_path):
    until(has_control(arm, "policy"), what="the policy to act")
    arm.enter(page, "/learning")  # it works on every page
    page.keyboard.press("Escape")
    stopped = until(has_control(arm, "fault"), what="the arm to stop")
    assert "emergency" in stopped["reason"].lower()
    page.goto(arm.address)
    page.wait_for_selector('#dt-in-control[data-control="fault"]')
    page.screenshot(path=tmp_path / "stopped.png")
    page.keyboard.press("c")
    assert read_state(arm)["control"] == "fault"  # start alone is not enough
    page.click('[data-event="acknowledge"]')
    until(has_control(arm, "policy", "idle"), what="the arm to continue")


@pytest.mark.extended
def test_episode_is_rated_by_key(arm, page):
    take_over(arm, page)
    until(has_control(arm, "human"), what="the operator to drive")
    ids = {read_state(arm)["episode"]["id"]}
    page.keyboard.press("y")
    rated = until(lambda: [e for e in read_events(arm) if e.get("id") in ids], what="the episode to end")
    page.keyboard.up("Space")
    assert rated[0]["outcome"] == "success" and rated[0]["human_share"] > 0


@pytest.mark.extended
def test_version_is_pinned_and_unpinned(arm, page, tmp_path):
    arm.enter(page, "/learning")
    page.wait_for_selector(".dt-version")
    number = page.get_attribute(
        ".dt-version >> nth=0", "data-version"
    )  # the newest, because the oldest may be deleted
    page.click(f".dt-version[data-version='{number}'] >> button")
    page.wait_for_selector(f".dt-chosen[data-version='{number}']")
    assert json.loads((arm.run / "weights" / "pin.json").read_text())["version"] == int(number)
    page.screenshot(path=tmp_path / "learning.png")
    page.click(".dt-chosen >> button")
    page.wait_for_selector(".dt-chosen", state="detached")
    assert not (arm.run / "weights" / "pin.json").exists()
