"""The page Episodes: filter, sort, play and download; invalid requests are refused."""

import http.client
import json
import zipfile
from pathlib import Path

import av
import httpx
import numpy as np
import pytest

from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.core.types import Outcome
from dovetail.episodes.lerobot.read import open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import human_labels
from dovetail.reports.rendering import episode_frames
from dovetail.runs.folder import RunFolder
from support.console_process import end_console, start_console
from support.labeled_run import LabeledRun
from support.recorded_runs import record_run

PAGE = "0" * 32


@pytest.fixture(scope="module")
def console(recorded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    run = recorded(folder)
    store = LabeledRun(run).store
    for name, verdict in (("e00", Outcome.SUCCESS), ("e01", Outcome.FAILURE), ("e03", Outcome.ABORTED)):
        store.add(human_labels(name, num_steps=12, outcome=Outcome.TIMEOUT, judgement=verdict, by="Ada"))
    temporary = folder / "temporary"
    temporary.mkdir()
    opened = start_console(run, env={"TMPDIR": str(temporary)})
    yield opened
    assert end_console(opened) == 0
    assert not list(temporary.iterdir())  # downloads are deleted


def listed(page, *, matching):
    page.wait_for_selector(f".dv-episodes[data-matching='{matching}']")
    return page.eval_on_selector_all("tr[data-id]", "rows => rows.map(row => row.dataset.id)")


@pytest.mark.extended
def test_episodes_are_filtered_and_sorted(console, page):
    console.enter(page, "/episodes")
    newest_first = [f"e0{number}" for number in range(7, -1, -1)]
    assert listed(page, matching=8) == newest_first
    page.click("th[data-sort=number]")
    page.wait_for_selector("tr[data-id=e00]:first-child")
    assert listed(page, matching=8) == newest_first[::-1]
    page.select_option("select[name=purpose]", "eval")
    assert listed(page, matching=2) == ["e02", "e05"]
    page.select_option("select[name=purpose]", "")
    for label, found in (("success", ["e00"]), ("failure", ["e01"]), ("discard", ["e03"])):
        page.select_option("select[name=label]", label)
        page.wait_for_selector(f"tr[data-id={found[0]}]:only-child")
    page.select_option("select[name=label]", "none")
    assert listed(page, matching=5) == ["e02", "e04", "e05", "e06", "e07"]
    page.keyboard.press("/")
    page.keyboard.type("E06")
    assert listed(page, matching=1) == ["e06"]
    page.select_option("select[name=outcome]", "success")
    assert listed(page, matching=0) == []
    page.fill("input[name=text]", "")
    page.select_option("select[name=outcome]", "timeout")
    page.select_option("select[name=task]", "push_cube")
    page.select_option("select[name=operator]", "scripted")
    assert len(listed(page, matching=5)) == 5


def test_episode_is_played_and_the_next_opened_by_keyboard(console, page):
    console.enter(page, "/episodes")
    page.click("tr[data-id=e07]")
    page.wait_for_selector(".dv-viewer[data-episode=e07]")
    facts = page.locator(".dv-view header .dv-facts").all_inner_texts()
    assert facts[0] == "from step 5: <b>pull</b> it back"  # as text
    assert len(facts) == 2
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_selector(".dv-player[data-index='10']")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".dv-viewer[data-episode=e06]")
    assert [canvas.get_attribute("data-frame") for canvas in page.locator(".dv-cameras canvas").all()] == ["0"] * 2
    page.keyboard.press("q")
    page.wait_for_selector(".dv-viewer", state="hidden")


@pytest.mark.extended
def test_video_of_all_cameras_is_downloaded(console, page, tmp_path):
    console.enter(page, "/episodes")
    page.click("tr[data-id=e04]")
    page.wait_for_selector(".dv-viewer[data-episode=e04]")
    with page.expect_download() as download:
        page.click(".dv-view header >> text=video")
    assert download.value.suggested_filename == "e04.mp4"
    download.value.save_as(tmp_path / "video.mp4")
    with av.open(str(tmp_path / "video.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert (len(frames), frames[0].shape) == (13, (64, 128, 3))
    log = EpisodeLog(console.run / "episodes")
    expected = np.concatenate([list(log.frames("e04", camera))[-1] for camera in ("front", "wrist")], axis=1)
    assert np.abs(frames[-1].astype(int) - expected).mean() < 8


@pytest.mark.extended
def test_selected_episodes_are_downloaded_as_a_lerobot_dataset(console, page, tmp_path):
    console.enter(page, "/episodes")
    page.wait_for_selector("tr[data-id=e01]")
    for name in ("e01", "e03"):
        page.check(f"tr[data-id={name}] input[type=checkbox]")
    with page.expect_download() as download:
        page.click("text=LeRobot (2)")
    assert download.value.suggested_filename == "2-episodes.lerobot.zip"
    download.value.save_as(tmp_path / "dataset.zip")
    with zipfile.ZipFile(tmp_path / "dataset.zip") as archive:
        archive.extractall(tmp_path / "dataset")
    (root,) = (tmp_path / "dataset").iterdir()
    assert json.loads((root / "meta" / "info.json").read_text())["total_episodes"] == 2
    log = EpisodeLog(console.run / "episodes")
    dataset = open_dataset(root, robot=log.manifest("e01").robot, task="push_cube")
    assert [dataset.episode_id(index) for index in range(2)] == ["e01", "e03"]
    assert len(dataset.episode(0)) == 12


def test_impossible_download_is_refused_with_a_reason(console, page):
    with httpx.Client(base_url=console.address, headers=console.headers) as client:
        key = client.post("/api/downloads", json={"kind": "video", "ids": ["e00", "e01"]})
        assert key.status_code == 400 and "shows one episode" in key.json()["detail"]
        assert client.get(f"/api/downloads/{'0' * 32}").status_code == 404
        assert client.get(f"/api/downloads/{'0' * 32}/file").status_code == 404


INVALID_IDS = [
    "..", ".", "...", "%2e%2e", "..%2f..%2fconfig.yaml", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "....//", ".order", ".tmp",
    ".lock", "e00%00", "e00%0a", "e00/../e01", "e00%2f..%2fe01", "-rf", "x" * 121, "x" * 5000, "e00%20", "e00;ls", "$(id)",
    "<script>", "%ff%fe", "é", "*", "C:%5Cwindows", "missing",
]  # fmt: skip


def raw(console, method, path, body=None):
    """A request whose path is not normalized."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
    connection._validate_path = lambda url: None
    connection._encode_request = lambda request: request.encode("utf-8")
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {**console.headers, "Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("name", INVALID_IDS)
def test_invalid_episode_id_is_refused(console, name):
    for path in ("", "/frames/0/0", "/thumbnail"):
        status, text = raw(console, "GET", f"/api/episodes/{name}{path}")
        assert status in (400, 404, 422), (path, status)
        assert "Traceback" not in text and str(console.run) not in text
    for path, body in (("claim", {}), ("label", {"verdict": "success"}), ("retract", {})):
        status, _ = raw(console, "POST", f"/api/label/episodes/{name}/{path}", {"page": PAGE, **body})
        assert status in (400, 404, 422), (path, status)
    assert not (console.run.parent / "labels").exists()
    assert set(LabeledRun(console.run).store.ids()) == {"e00", "e01", "e03"}


def marked(first, last, reward):
    return {"verdict": "success", "marks": [{"first": first, "last": last, "reward": reward}]}


INVALID_LABELS = [
    {}, {"verdict": "maybe"}, {"verdict": ["success"]}, {"verdict": "success", "page": "me"},
    {"verdict": "success", "by": "root"}, {"verdict": "success", "queued": "perhaps"},
    {"verdict": "success", "marks": {"first": 0}}, marked(0, 99, 1), marked(3, 1, 1), marked(-1, 1, 1),
    marked(0, 1, 1e9), marked(0, 1, "much"), marked(0, 1, None),
    {"verdict": "success", "marks": [{"first": 0, "last": 1, "reward": 1}] * 201},
]  # fmt: skip


@pytest.mark.parametrize("body", INVALID_LABELS, ids=lambda body: str(body)[:60])
def test_invalid_label_is_refused(console, body):
    with httpx.Client(base_url=console.address, headers=console.headers) as client:
        answer = client.post("/api/label/episodes/e04/label", json={"page": PAGE, "queued": False, **body})
        client.post("/api/label/release", json={"page": PAGE})
    assert answer.status_code in (400, 422)
    assert LabeledRun(console.run).store.current("e04") is None


def test_malformed_requests_are_refused(console):
    with httpx.Client(base_url=console.address, headers=console.headers) as client:
        for content in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"page": NaN}',
            b"\xff\xfe",
            b'{"page": "' + PAGE.encode() + b'", "ids": [1]}',
        ):
            for path in ("claim", "renew", "release", "episodes/e04/label"):
                answer = client.post(
                    f"/api/label/{path}", content=content, headers={"Content-Type": "application/json"}
                )
                assert answer.status_code in (400, 422), (path, content)
        nan = (
            b'{"page": "'
            + PAGE.encode()
            + b'", "verdict": "success", "marks": [{"first": 0, "last": 1, "reward": NaN}]}'
        )
        assert client.post("/api/label/episodes/e04/label", content=nan).status_code in (400, 422)
        for path in (
            "episodes/e04/frames/9/0", "episodes/e04/frames/-1/0", "episodes/e04/frames/0/99999999999",
            "episodes/e04/frames/x/0",
            "episodes?limit=100000", "episodes?limit=-1", "episodes?offset=-1", "episodes?sort=secret", "episodes?nothing=1",
            f"episodes?text={'x' * 300}", "downloads/../../etc", "label/queue",
        ):  # fmt: skip
            assert client.get(f"/api/{path}").status_code in (404, 422), path
        assert client.get("/api/episodes/e04/frames/0/7").content == bytes(4)  # after the last frame: none
        many = {"kind": "lerobot", "ids": ["e04"] * 5001}
        assert client.post("/api/downloads", json=many).status_code == 422
        answer = client.get("/api/episodes/e04")
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        frames = client.get("/api/episodes/e04/frames/0/0")
        assert "immutable" in frames.headers["cache-control"] and "private" in frames.headers["cache-control"]


def test_episode_without_images_is_rendered(tmp_path: Path):
    folder = record_run(tmp_path / "run", num_episodes=1, seconds=0.4, cameras=())
    episodes = RecordedEpisodes(folder.path)
    try:
        assert episodes.cameras("e00") == {"front": 4}
        rendered = list(episodes.frames("e00", "front"))
        expected = list(episode_frames(RunFolder.open(folder.path), "e00", size=(320, 320)))
        np.testing.assert_array_equal(rendered, expected)
        np.testing.assert_array_equal(episodes.last_frame("e00", "front"), expected[-1])
    finally:
        episodes.close()
