"""All pages in a real Chromium on a phone, a tablet and a desktop: they fit, STOP is in reach, text is readable."""

import json

import pytest

from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from support.console_process import end_console, start_console
from support.page_audit import SIZES, audit, new_context
from support.waiting import wait_until

PAGES = ("/", "/takeover", "/label", "/episodes", "/learning")
FIGURES = {
    "successes": 9, "rate": 0.9, "low": 0.6, "high": 0.98, "episodes": 10, "per_minute": 12.0, "per_minute_with_resets": 8.0,
    "cycle_time_s": {"median": 3.2, "low": 2.9, "high": 3.6, "count": 9}, "interventions_per_minute": 0.5,
    "return": {"mean": 0.9, "low": 0.7, "high": 1.1, "std": 0.3, "count": 10}, "metrics": {},
}  # fmt: skip
RETURN_ONLY = {
    **dict.fromkeys(FIGURES),
    "episodes": 10,
    "interventions_per_minute": 0.0,
    "return": {"mean": -262.0, "low": -300.0, "high": -220.0, "std": 60.0, "count": 10},
}


@pytest.fixture(scope="module")
def run(recorded, tmp_path_factory):
    """A finished run with episodes to label and two evaluations."""
    folder = recorded(tmp_path_factory.mktemp("runs"))
    queue = LabelQueue(folder / "labels" / "queue")
    for number in range(8):
        queue.put(f"e0{number}", [Reason.NEW], opinions=[], note="")
    _write_events(folder, FIGURES)
    return folder


def _write_events(folder, figures):
    events = [
        {"event": "evaluated", "name": name, "version": at, "env_steps": at, **figures}
        for name, at in (("cloning", 1), ("after", 900))
    ]
    events += [{"event": "episode", "id": "x", "env_steps": 50, "return": -300.0, "human_share": 0.1}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture(scope="module")
def console(run):
    opened = start_console(run)
    yield opened
    end_console(opened)


@pytest.fixture
def open_page(browser):
    contexts = []

    def open_page(size, **other):
        contexts.append(new_context(browser, size, **other))
        return contexts[-1].new_page()

    yield open_page
    for context in contexts:
        context.close()


def swipe(page, selector, dx):
    """One finger on the middle of an element, moved to the side."""
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = page.context.new_cdp_session(page)
    points = [{"x": x + dx * share, "y": y} for share in (0.0, 0.3, 0.6, 1.0)]
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
    for point in points[1:]:
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def wait_shown(page, episode):
    page.wait_for_function("id => document.getElementById('dv-label').dataset.episode === id", arg=episode)


def test_phone_labels_by_button_and_by_swipe(console, run, open_page):
    page = console.enter(open_page("phone"), "/label")
    wait_shown(page, "e00")
    assert audit(page) == []
    for name in ("success", "failure"):
        box = page.locator(f".dv-do-{name}").bounding_box()
        assert box["y"] + box["height"] <= 844 - 58, f"{name} is not on the first screen"
        assert box["height"] >= 44
    page.tap(".dv-do-success")
    wait_shown(page, "e01")
    page.tap(".dv-do-undo")
    wait_shown(page, "e00")
    swipe(page, ".dv-cameras", 40)  # too short
    page.wait_for_timeout(100)
    assert page.evaluate("document.getElementById('dv-label').dataset.episode") == "e00"
    swipe(page, ".dv-cameras", -200)
    wait_shown(page, "e01")
    swipe(page, ".dv-cameras", 200)
    wait_shown(page, "e02")
    queue = LabelQueue(run / "labels" / "queue")
    wait_until(lambda: not {"e00", "e01"} & set(queue.ids()))
    store = LabelStore(run / "labels")
    assert [store.current(episode).success for episode in ("e00", "e01")] == [False, True]


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_page_fits_the_screen_and_is_readable(console, open_page, size, scheme):
    page = open_page(size, color_scheme=scheme)
    problems = {}
    for path in PAGES:
        console.enter(page, path)
        page.wait_for_timeout(1200)  # charts and lists
        problems[path] = audit(page)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        problems[f"{path}, scrolled to its end"] = [one for one in audit(page) if "STOP" in one]
    assert {path: found for path, found in problems.items() if found} == {}


@pytest.mark.extended
def test_episode_on_a_phone_fits_the_screen(console, open_page):
    page = console.enter(open_page("phone"), "/episodes")
    page.tap("tr[data-id=e03] button")
    page.wait_for_selector(".dv-viewer[data-episode=e03]")
    assert audit(page) == []


@pytest.mark.extended
def test_stop_stays_in_the_visible_part_of_a_zoomed_page(console, open_page):
    page = console.enter(open_page("phone"), "/learning")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 2.5})
    page.wait_for_selector("#dt-emergency.dt-floating")
    session.send("Input.synthesizeScrollGesture", {"x": 70, "y": 150, "yDistance": -100, "speed": 4000})
    where = """() => { const b = document.getElementById('dt-emergency').getBoundingClientRect(), v = visualViewport;
        const right = v.offsetLeft + v.width, bottom = v.offsetTop + v.height;
        return [b.left - v.offsetLeft, b.top - v.offsetTop, right - b.right, bottom - b.bottom]; }"""
    wait_until(lambda: min(page.evaluate(where)) >= 0)


@pytest.mark.extended
def test_stop_is_in_view_on_every_page_with_an_open_menu_and_a_focused_field(console, open_page):
    for path in PAGES:
        page = console.enter(open_page("phone"), path)
        page.tap("#dt-menu")
        page.tap("#dt-name")
        page.set_viewport_size({"width": 390, "height": 420})  # what an on-screen keyboard leaves
        page.wait_for_timeout(100)
        assert [one for one in audit(page) if "STOP" in one] == []


@pytest.mark.extended
@pytest.mark.parametrize("path", PAGES)
def test_keyboard_reaches_every_control_in_order_and_shows_the_focus(console, open_page, path):
    page = console.enter(open_page("desktop"), path)
    page.wait_for_timeout(1000)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "dt-skip"
    seen, hidden = [], []
    for _ in range(200):
        page.keyboard.press("Tab")
        now = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            const shows = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2;
            return [e.tagName, e.id || e.textContent.trim().slice(0, 30), shows]; }"""
        )
        if now[0] == "BODY" or now[1] == "Skip to the content":
            break
        seen.append(now[1])
        hidden += [] if now[2] else [now[1]]
    else:
        raise AssertionError(f"the focus does not leave the page: {seen[-5:]}")
    assert hidden == [], "these controls do not show the focus"
    assert "dt-emergency" in seen and "dt-name" in seen
    assert seen.index("dt-name") < seen.index("dt-emergency")
    controls = page.evaluate(
        """[...document.querySelectorAll('main button, main select, main input')]
        .filter((e) => e.getBoundingClientRect().width && !e.disabled)
        .map((e) => e.id || e.textContent.trim().slice(0, 30))"""
    )
    assert set(controls) <= set(seen)


@pytest.mark.extended
def test_help_opens_and_closes_by_keyboard_and_returns_the_focus(console, open_page):
    page = console.enter(open_page("desktop"), "/episodes")
    page.focus("#dt-help-open")
    page.keyboard.press("Enter")
    page.wait_for_selector("#dt-help", state="visible")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "dt-help-close"
    page.keyboard.press("Enter")
    page.wait_for_selector("#dt-help", state="hidden")
    assert page.evaluate("document.activeElement.id") == "dt-help-open"


@pytest.mark.extended
def test_buttons_of_label_work_with_space_and_enter(console, open_page):
    page = console.enter(open_page("desktop"), "/label")
    page.wait_for_function("document.getElementById('dv-label').dataset.episode")
    first = page.evaluate("document.getElementById('dv-label').dataset.episode")
    page.focus(".dv-do-skip")
    page.keyboard.press("Space")
    page.wait_for_function(
        "id => ![id, ''].includes(document.getElementById('dv-label').dataset.episode)", arg=first
    )


@pytest.mark.extended
def test_pictures_keep_their_proportions_and_are_smooth(console, open_page):
    for size in SIZES:
        page = console.enter(open_page(size), "/label?episode=e07")
        page.wait_for_function("document.getElementById('dv-label').dataset.episode")
        page.wait_for_timeout(300)
        for width, height, ratio, rendering in page.evaluate(
            """[...document.querySelectorAll('.dv-cameras canvas')].map((c) => { const b = c.getBoundingClientRect();
            return [b.width, b.height, c.width / c.height, getComputedStyle(c).imageRendering]; })"""
        ):
            assert width > 100 and width / height == pytest.approx(ratio, rel=0.02), size
            assert rendering == "auto"


@pytest.mark.extended
def test_evaluations_show_all_figures(console, open_page):
    page = console.enter(open_page("desktop"), "/learning")
    page.wait_for_selector(".dt-evaluations")
    row = page.inner_text(".dt-evaluations tbody tr >> nth=0")
    for text in (
        "after",
        "90 %",
        "60 % to 98 %",
        "3.2 s",
        "2.9 to 3.6 s",
        "12",
        "8 with resets",
        "0.5",
        "0.7 to 1.1",
    ):
        assert text in row
    assert page.locator('[data-curve="success"]').is_visible()


@pytest.mark.extended
def test_environment_without_success_shows_the_return(recorded, open_console, open_page, tmp_path):
    folder = recorded(tmp_path)
    _write_events(folder, RETURN_ONLY)
    page = open_console(folder).enter(open_page("phone"), "/learning")
    page.wait_for_selector(".dt-evaluations")
    table = page.inner_text(".dt-evaluations")
    assert "-262" in table and "success" not in table and "%" not in table
    assert page.locator('[data-curve="return"]').is_visible()
    assert page.locator('[data-curve="success"]').is_hidden()
    assert page.locator('[data-curve="cycle_time_s"]').is_hidden()
    assert audit(page) == []
