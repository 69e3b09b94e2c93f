"""People label by keyboard, in real Chromium; what they say is in the run's label store."""

import base64
import io
import time

import numpy as np
import pytest
from PIL import Image

from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.queue import Reason
from support.console_process import end_console, start_console
from support.labelled_runs import LabelledRun, shown, wait_shown, wait_until
from support.recorded_runs import CAMERAS


@pytest.fixture(scope="module")
def console(recorded, tmp_path_factory):
    opened = start_console(recorded(tmp_path_factory.mktemp("label")))
    yield opened
    assert end_console(opened) == 0


@pytest.fixture
def run(console):
    run = LabelledRun(console.run)
    yield run
    run.empty_queue()


@pytest.fixture
def people(browser):
    """`people(console, name)` is one more person: a browser of their own, at the page, under a name."""
    contexts = []

    def person(console, name):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark"))
        contexts[-1].set_default_timeout(60_000)
        page = console.enter(contexts[-1].new_page(), "/label")
        page.fill("#dt-name", name)
        page.press("#dt-name", "Enter")
        return page

    yield person
    for context in contexts:
        context.close()


def test_success_failure_and_discard_by_keyboard_reach_the_label_store(console, run, page):
    run.ask("e00", "e01", reason=Reason.UNCERTAIN)
    run.ask("e02", reason=Reason.DISAGREEMENT, note="the two did not agree")
    console.enter(page, "/label")
    assert wait_shown(page, "e00") == "e00"  # the longest wait first
    page.wait_for_selector(".dv-items li[data-id=e02] >> text=disagreement")
    assert "classifier: success 55%; the two did not agree" in page.inner_text(".dv-items li[data-id=e02]")
    for key, after in (("s", "e01"), ("f", "e02")):
        page.keyboard.press(key)
        wait_shown(page, after)
    page.keyboard.press("d")
    page.wait_for_selector("text=Nothing waits for you")
    run.wait_labelled("e00", "e01", "e02")
    success, failure, discard = (run.store.current(name) for name in ("e00", "e01", "e02"))
    for labels in (success, failure, discard):
        assert (labels.labeler, labels.version, labels.priority) == ("human", "somebody", 100)
    assert success.success and not failure.success
    assert [labels.discard for labels in (success, failure, discard)] == [False, False, True]
    np.testing.assert_array_equal(success.rewards, np.eye(12, dtype=np.float32)[-1])
    np.testing.assert_array_equal(failure.rewards, np.zeros(12, np.float32))
    assert (success.discounts[-1], failure.discounts[-1]) == (0.0, 1.0)  # it ran out of time: no true end


def test_what_labelers_said_is_shown_with_confidence_and_reasons_as_plain_text(console, run, page):
    """A model writes its reasons, and whoever writes to a model may have written them."""
    why = "<img src=x onerror=alert(1)> the cube is off the mark"
    said = {"labeler": "vlm", "version": "1", "success": False, "confidence": 0.42, "why": why, "priority": -1}
    rewards = {"rewards": np.zeros(12, np.float32), "discounts": np.ones(12, np.float32)}
    run.store.add(Labels(episode_id="e04", **said, **rewards))
    run.ask("e04")
    console.enter(page, "/label")
    wait_shown(page, "e04")
    told = page.inner_text(".dv-said")
    assert "failure" in told and "42 % sure" in told and why in told
    assert "counts" not in told  # an opinion
    assert page.locator(".dv-said img").count() == 0


def test_undo_takes_the_last_word_back_and_brings_the_episode_back(console, run, page):
    run.ask("e03", "e04")
    console.enter(page, "/label")
    wait_shown(page, "e03")
    page.keyboard.press("f")
    wait_shown(page, "e04")
    run.wait_labelled("e03")
    page.keyboard.press("u")
    wait_shown(page, "e03")
    assert run.store.current("e03") is None and "e03" in run.queue.ids()
    page.keyboard.press("s")
    wait_shown(page, "e04")
    run.wait_labelled("e03")
    assert run.store.current("e03").success


def test_a_marked_range_becomes_rewards_and_can_be_undone(console, run, page):
    run.ask("e05")
    console.enter(page, "/label")
    wait_shown(page, "e05")
    for keys, reward in ((["ArrowRight"] * 2, "-1"), (["ArrowRight"] * 3, "0,5"), (["End"], "nonsense")):
        page.keyboard.press("r")
        for key in keys:
            page.keyboard.press(key)
        page.keyboard.press("r")
        page.keyboard.type(reward)
        page.keyboard.press("Enter")
    page.wait_for_selector("text=a reward is a number")
    page.keyboard.press("Control+a")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    assert page.locator(".dv-marks li").count() == 3
    page.keyboard.press("u")
    assert page.locator(".dv-marks li").all_inner_texts() == ["steps 0\u20132\n-1", "steps 2\u20135\n0.5"]
    page.keyboard.press("f")
    run.wait_labelled("e05")
    expected = np.zeros(12, np.float32)
    expected[0:3] -= 1 / 3
    expected[2:6] += 0.125
    np.testing.assert_allclose(run.store.current("e05").rewards, expected, atol=1e-6)


def test_scrubbing_moves_all_cameras_together_frame_by_frame(console, run, page):
    run.ask("e06")
    console.enter(page, "/label")
    wait_shown(page, "e06")
    log = EpisodeLog(run.path / "episodes")
    truth = {camera: list(log.frames("e06", camera)) for camera in CAMERAS}

    def at(index):
        page.wait_for_selector(f".dv-player[data-index='{index}']")
        assert [canvas.get_attribute("data-frame") for canvas in page.locator(".dv-cameras canvas").all()] == [
            str(index)
        ] * 2
        for camera in CAMERAS:
            url = page.evaluate(
                "name => document.querySelector(`canvas[data-camera=${name}]`).toDataURL()", camera
            )
            png = base64.b64decode(url.partition(",")[2])
            seen = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
            errors = [np.abs(seen - frame).mean() for frame in truth[camera]]
            assert int(np.argmin(errors)) == index and errors[index] < 4.0, (camera, errors)

    at(0)
    for key, index in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("Shift+ArrowRight", 12),
        ("ArrowLeft", 11),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        at(index)
    page.keyboard.press(" ")  # plays to its end, the true last observation
    page.wait_for_selector(".dv-player[data-index='12']")
    at(12)


def test_the_next_episode_is_there_before_it_is_asked_for_and_no_word_is_lost(console, run, page):
    """The network is cut: what comes next was fetched before, and what is said waits until somebody listens."""
    run.ask("e00", "e01")
    before = run.human_words("e00")
    console.enter(page, "/label")
    wait_shown(page, "e00")
    page.wait_for_function("dovetailLabel.held.length == 2 && dovetailLabel.held[1].bundle.share == 1")
    page.wait_for_function("dovetailLabel.held[1].bundle.bitmapsNow(0) !== null")
    page.route("**/api/**", lambda route: route.abort())
    page.keyboard.press("d")
    wait_shown(page, "e01")
    page.wait_for_selector("text=the console does not answer")
    assert "e00" in run.queue.ids()
    page.unroute("**/api/**")
    wait_until(lambda: run.store.current("e00") is not None and run.store.current("e00").discard)
    wait_until(lambda: "e00" not in run.queue.ids())
    assert run.human_words("e00") == before + 1


def test_a_key_that_is_held_down_says_it_once(console, run, page):
    run.ask("e03", "e04", "e05")
    console.enter(page, "/label")
    wait_shown(page, "e03")
    for _ in range(6):
        page.keyboard.down("s")
    wait_shown(page, "e04")
    page.keyboard.up("s")
    page.keyboard.press("n")  # leave it for later
    wait_shown(page, "e05")
    wait_until(lambda: "e03" not in run.queue.ids())
    assert set(run.queue.ids()) == {"e04", "e05"}


def test_two_people_at_once_never_get_the_same_episode_and_leave_none_out(console, run, people):
    names = [f"e0{number}" for number in range(8)]
    run.ask(*names)
    people_at_work = {"Ada": people(console, "Ada"), "Bo": people(console, "Bo")}
    assert len({wait_shown(page, *names) for page in people_at_work.values()}) == 2
    seen = {name: [] for name in people_at_work}
    end = time.monotonic() + 120
    while run.queue.ids():
        assert time.monotonic() < end, (seen, run.queue.ids())
        for name, page in people_at_work.items():
            page.wait_for_function(
                "last => { const now = document.getElementById('dv-label').dataset.episode ?? '';"
                " return (now && now !== last) || document.body.innerText.includes('Nothing waits'); }",
                arg=seen[name][-1] if seen[name] else "",
            )
            episode = shown(page)
            if episode and episode not in seen[name]:
                seen[name].append(episode)
                page.keyboard.press("s")
        assert not set(seen["Ada"]) & set(seen["Bo"])
    assert sorted(seen["Ada"] + seen["Bo"]) == names
    assert seen["Ada"] and seen["Bo"]
    for episode in names:
        run.wait_labelled(episode)
        spoke = [record.labels.version for record in run.store.history(episode)]
        assert [name for name in spoke if name in seen] == ["Ada" if episode in seen["Ada"] else "Bo"]


def test_a_closed_tab_gives_its_episodes_back_at_once(console, run, people):
    run.ask("e06", "e07")
    one = people(console, "Ada")
    wait_shown(one, "e06")
    other = people(console, "Bo")
    other.wait_for_selector("text=Nothing waits for you")
    other.wait_for_selector(".dv-items .dv-theirs[data-id=e07]")
    one.close()
    wait_shown(other, "e06", "e07")


def test_an_episode_found_in_the_list_is_judged_anew_by_hand(console, run, page):
    console.enter(page, "/episodes")
    page.click("tr[data-id=e07]")
    page.wait_for_selector(".dv-viewer[data-episode=e07]")
    page.keyboard.press("l")
    wait_shown(page, "e07")
    page.fill("#dt-name", "Ada")
    page.keyboard.press("Enter")
    for key, word in (("s", "success"), ("f", "failure")):
        page.keyboard.press(key)
        page.wait_for_selector(f".dv-said .dv-counts >> text={word}")
        assert (run.store.current("e07").success, run.store.current("e07").version) == (word == "success", "Ada")
    page.keyboard.press("u")
    page.wait_for_selector(".dv-said .dv-counts >> text=success")
    assert run.store.current("e07").success
    assert shown(page) == "e07"


def test_thumbnails_show_how_episodes_ended(console, run, page):
    run.ask("e01")
    console.enter(page, "/label")
    page.wait_for_function("document.querySelector('.dv-items img')?.naturalWidth == 64")
    answer = page.request.get(f"{console.address}api/episodes/e01/thumbnail")
    picture = np.asarray(Image.open(io.BytesIO(answer.body()))).astype(int)
    *_, last = EpisodeLog(run.path / "episodes").frames("e01", "front")
    assert np.abs(picture - last).mean() < 4.0
