"""Labeling by keyboard in a real Chromium; the labels are in the label store of the run."""

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
from support.labeled_run import LabeledRun, shown, wait_shown
from support.live_run import until
from support.recorded_runs import CAMERAS


@pytest.fixture(scope="module")
def console(recorded, tmp_path_factory):
    opened = start_console(recorded(tmp_path_factory.mktemp("label")))
    yield opened
    assert end_console(opened) == 0


@pytest.fixture
def run(console):
    run = LabeledRun(console.run)
    yield run
    run.empty_queue()


@pytest.fixture
def open_page(browser):
    """`open_page(console, name)` opens the page Label in another browser context, under a name."""
    contexts = []

    def open_label_page(console, name):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark"))
        contexts[-1].set_default_timeout(60_000)
        page = console.enter(contexts[-1].new_page(), "/label")
        page.fill("#dt-name", name)
        page.press("#dt-name", "Enter")
        return page

    yield open_label_page
    for context in contexts:
        context.close()


def test_labels_by_keyboard_reach_the_label_store(console, run, page):
    run.enqueue("e00", "e01", reason=Reason.UNCERTAIN)
    run.enqueue("e02", reason=Reason.DISAGREEMENT, note="the two did not agree")
    console.enter(page, "/label")
    assert wait_shown(page, "e00") == "e00"  # the longest wait first
    page.wait_for_selector(".dv-items li[data-id=e02] >> text=disagreement")
    assert "classifier: success 55%; the two did not agree" in page.inner_text(".dv-items li[data-id=e02]")
    for key, after in (("s", "e01"), ("f", "e02")):
        page.keyboard.press(key)
        wait_shown(page, after)
    page.keyboard.press("d")
    page.wait_for_selector("text=No episodes to label")
    page.wait_for_selector("text=open it in Episodes, then press L")
    run.wait_labeled("e00", "e01", "e02")
    success, failure, discard = (run.store.current(name) for name in ("e00", "e01", "e02"))
    for labels in (success, failure, discard):
        assert (labels.labeler, labels.version, labels.priority) == ("human", "anonymous", 100)
    assert success.success and not failure.success
    assert [labels.discard for labels in (success, failure, discard)] == [False, False, True]
    np.testing.assert_array_equal(success.rewards, np.eye(12, dtype=np.float32)[-1])
    np.testing.assert_array_equal(failure.rewards, np.zeros(12, np.float32))
    assert (success.discounts[-1], failure.discounts[-1]) == (0.0, 1.0)  # a timeout is not a terminal state


def test_labels_of_models_are_shown_as_plain_text(console, run, page):
    """A prompt injection may reach the reasons that a model writes."""
    why = "<img src=x onerror=alert(1)> the cube is off the mark"
    label = {"labeler": "vlm", "version": "1", "success": False, "confidence": 0.42, "why": why, "priority": -1}
    rewards = {"rewards": np.zeros(12, np.float32), "discounts": np.ones(12, np.float32)}
    run.store.add(Labels(episode_id="e04", **label, **rewards))
    run.enqueue("e04")
    console.enter(page, "/label")
    wait_shown(page, "e04")
    text = page.inner_text(".dv-labels")
    assert "failure" in text and "confidence 42 %" in text and why in text
    assert "counts" not in text  # its priority is negative
    assert page.locator(".dv-labels img").count() == 0


def test_undo_retracts_the_last_label_and_shows_the_episode_again(console, run, page):
    run.enqueue("e03", "e04")
    console.enter(page, "/label")
    wait_shown(page, "e03")
    page.keyboard.press("f")
    wait_shown(page, "e04")
    run.wait_labeled("e03")
    page.keyboard.press("u")
    wait_shown(page, "e03")
    assert run.store.current("e03") is None and "e03" in run.queue.ids()
    page.keyboard.press("s")
    wait_shown(page, "e04")
    run.wait_labeled("e03")
    assert run.store.current("e03").success


@pytest.mark.extended
def test_marked_ranges_become_rewards_and_can_be_undone(console, run, page):
    run.enqueue("e05")
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
    run.wait_labeled("e05")
    expected = np.zeros(12, np.float32)
    expected[0:3] -= 1 / 3
    expected[2:6] += 0.125
    np.testing.assert_allclose(run.store.current("e05").rewards, expected, atol=1e-6)


@pytest.mark.extended
def test_all_cameras_show_the_same_frame(console, run, page):
    run.enqueue("e06")
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
    page.keyboard.press(" ")  # play to the end, which shows the last observation
    page.wait_for_selector(".dv-player[data-index='12']")
    at(12)


def test_next_episode_is_preloaded_and_labels_survive_a_lost_connection(console, run, page):
    run.enqueue("e00", "e01")
    before = run.num_human_labels("e00")
    console.enter(page, "/label")
    wait_shown(page, "e00")
    page.wait_for_function("dovetailLabel.claimed.length == 2 && dovetailLabel.claimed[1].bundle.share == 1")
    page.wait_for_function("dovetailLabel.claimed[1].bundle.bitmapsNow(0) !== null")
    page.route("**/api/**", lambda route: route.abort())
    page.keyboard.press("d")
    wait_shown(page, "e01")
    page.wait_for_selector("text=the console does not answer")
    assert "e00" in run.queue.ids()
    page.unroute("**/api/**")
    until(lambda: (labels := run.store.current("e00")) and labels.discard, what="the label")
    until(lambda: "e00" not in run.queue.ids(), what="the queue to be shorter")
    assert run.num_human_labels("e00") == before + 1


def test_key_that_is_held_down_counts_once(console, run, page):
    run.enqueue("e03", "e04", "e05")
    console.enter(page, "/label")
    wait_shown(page, "e03")
    for _ in range(6):
        page.keyboard.down("s")
    wait_shown(page, "e04")
    page.keyboard.up("s")
    page.keyboard.press("n")  # skip it
    wait_shown(page, "e05")
    until(lambda: "e03" not in run.queue.ids(), what="the queue to be shorter")
    assert set(run.queue.ids()) == {"e04", "e05"}


@pytest.mark.extended
def test_two_people_label_every_episode_once(console, run, open_page):
    names = [f"e0{number}" for number in range(8)]
    run.enqueue(*names)
    pages = {"Ada": open_page(console, "Ada"), "Bo": open_page(console, "Bo")}
    assert len({wait_shown(page, *names) for page in pages.values()}) == 2
    seen = {name: [] for name in pages}
    end = time.monotonic() + 120
    while run.queue.ids():
        assert time.monotonic() < end, (seen, run.queue.ids())
        for name, page in pages.items():
            page.wait_for_function(
                "last => { const now = document.getElementById('dv-label').dataset.episode ?? '';"
                " return (now && now !== last) || document.body.innerText.includes('No episodes to label'); }",
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
        run.wait_labeled(episode)
        names_of_labels = [record.labels.version for record in run.store.history(episode)]
        assert [name for name in names_of_labels if name in seen] == ["Ada" if episode in seen["Ada"] else "Bo"]


@pytest.mark.extended
def test_closed_tab_releases_its_episodes_at_once(console, run, open_page):
    run.enqueue("e06", "e07")
    one = open_page(console, "Ada")
    wait_shown(one, "e06")
    other = open_page(console, "Bo")
    other.wait_for_selector("text=No episodes to label")
    other.wait_for_selector(".dv-items .dv-other[data-id=e07]")
    one.close()
    wait_shown(other, "e06", "e07")


@pytest.mark.extended
def test_episode_from_the_list_can_be_labeled_again(console, run, page):
    console.enter(page, "/episodes")
    page.click("tr[data-id=e07]")
    page.wait_for_selector(".dv-viewer[data-episode=e07]")
    page.keyboard.press("l")
    wait_shown(page, "e07")
    page.fill("#dt-name", "Ada")
    page.keyboard.press("Enter")

    def labeled_by_ada(success):  # another test may have labeled it before
        labels = run.store.current("e07")
        return labels is not None and (labels.success, labels.version) == (success, "Ada")

    for key, verdict in (("s", "success"), ("f", "failure")):
        page.keyboard.press(key)
        until(lambda success=verdict == "success": labeled_by_ada(success), what="the label")
        page.wait_for_selector(f".dv-labels .dv-counts >> text={verdict}")
    page.keyboard.press("u")
    page.wait_for_selector(".dv-labels .dv-counts >> text=success")
    assert run.store.current("e07").success
    assert shown(page) == "e07"


@pytest.mark.extended
def test_thumbnail_shows_the_last_frame(console, run, page):
    run.enqueue("e01")
    console.enter(page, "/label")
    page.wait_for_function("document.querySelector('.dv-items img')?.naturalWidth == 64")
    answer = page.request.get(f"{console.address}api/episodes/e01/thumbnail")
    image = np.asarray(Image.open(io.BytesIO(answer.body()))).astype(int)
    *_, last = EpisodeLog(run.path / "episodes").frames("e01", "front")
    assert np.abs(image - last).mean() < 4.0
