"""The roles of a run on Ray, as the page Live shows them."""

import httpx
import pytest

from dovetail.live.link import LiveLink
from support.made_runs import ROBOT, made_run
from support.waiting import wait_until

ROLES = [
    {"name": "store", "health": "well", "doing": "", "host": "desk", "queue": 4, "episodes_per_min": 12.34},
    {
        "name": "learner",
        "health": "well",
        "doing": "learning",
        "host": "desk",
        "updates_per_s": 88.2,
        "version": 8,
    },
    {
        "name": "robot-0",
        "health": "stopped: acknowledge it",
        "doing": "acting",
        "problem": "<b>the emergency stop</b>",
        "host": "cell",
        "queue": 0,
        "version": 7,
        "versions_behind": 1,
        "starts": 2,
    },
]
WHOLE = {"episodes_per_min": 12.34, "updates_per_s": 88.2, "steps_behind": 40.0, "versions_behind": 1}


@pytest.fixture
def link(tmp_path):
    """The live link of a run whose arm is in this process."""
    link = LiveLink(made_run(tmp_path / "one").path, robot=ROBOT)
    link.open()
    yield link
    link.close()


@pytest.mark.extended
def test_roles_are_shown_only_if_the_run_has_any(link, open_console, page, tmp_path):
    link.update(run="one", phase="learning online")
    open_console(tmp_path / "one").enter(page)
    page.wait_for_function("window.dovetail.state?.facts.phase === 'learning online'")
    assert not page.is_visible("#dt-roles")
    link.update(roles=ROLES, pipeline=WHOLE, weights_unix_s=0.0)
    page.wait_for_selector("#dt-roles tbody tr")
    cells = {
        row.get_attribute("data-role"): row.query_selector_all("td")
        for row in page.query_selector_all("#dt-roles tbody tr")
    }
    texts = {name: [cell.inner_text() for cell in row] for name, row in cells.items()}
    assert texts["store"] == ["store", "well", "", "4", "12.3 episodes/min", "", "desk"]
    assert texts["learner"] == ["learner", "well", "learning", "", "88 updates/s", "v8", "desk"]
    assert texts["robot-0"][1:4] == ["stopped: acknowledge it (started 2 times)", "<b>the emergency stop</b>", "0"]
    assert texts["robot-0"][5:] == ["v7, 1 behind", "cell"]
    assert page.query_selector("[data-role=robot-0].dt-warn") and not page.query_selector(
        "[data-role=store].dt-warn"
    )
    whole = page.inner_text("#dt-pipeline")
    for part in ("12.3", "88", "40", "steps not yet learned from", "since the last weights"):
        assert part in whole
    page.screenshot(path=tmp_path / "roles.png", full_page=True)


@pytest.mark.extended
def test_stopped_arm_is_acknowledged_by_its_name(link, open_console, page, tmp_path):
    console = open_console(tmp_path / "one")
    console.enter(page)
    stopped = {
        "name": "robot-1",
        "health": "stopped",
        "doing": "",
        "host": "cell",
        "problem": "the elbow is stuck",
    }
    link.update(run="one", roles=[*ROLES[:2], {**stopped, "may_acknowledge": True}])
    page.wait_for_selector("[data-acknowledge=robot-1]")
    page.screenshot(path=tmp_path / "stopped.png", full_page=True)
    page.click("[data-acknowledge=robot-1]")
    wait_until(lambda: link.stop.last_acknowledgement("robot-1") > 0)
    assert link.stop.last_acknowledgement("robot-0") == -1
    link.update(roles=ROLES[:2])
    page.wait_for_selector("[data-acknowledge=robot-1]", state="detached")
    refused = httpx.post(f"{console.address}api/acknowledge", headers=console.headers, json={"robot": "robot-1"})
    assert (refused.status_code, refused.json()["detail"]) == (409, "robot-1 has not stopped")
    assert httpx.post(f"{console.address}api/acknowledge", json={"robot": "robot-1"}).status_code == 401
