"""STOP from the console: pressed first, confirmed by the arms, and answered whatever else happens."""

import asyncio
import contextlib
import json
import resource
import secrets
import socket
import statistics
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import websockets
from fastapi.testclient import TestClient

from dovetail.console.arms import LiveArms
from dovetail.console.emergency import ConsoleStop
from dovetail.console.live_api import make_app
from dovetail.console.run_files import RunFiles
from dovetail.console.run_history import RunHistory
from dovetail.core.errors import UsageError
from dovetail.core.types import Event
from dovetail.live.run_stop import Kind
from support.console_process import end_console, start_console
from support.faults.shim import memory_folder
from support.live_arm import live_arm
from support.made_runs import made_episode, made_run
from support.many_episodes import many_episodes
from support.waiting import wait_until

ANSWER_S = 5.0  # generous: this machine is busy
NUM_STRANGERS = 2000


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """An active run and its console, for tests that do not change its files."""
    with live_arm(tmp_path_factory.mktemp("runs") / "one") as arm:
        opened = start_console(arm.run)
        wait_until(lambda: state(opened))
        yield arm, opened
        end_console(opened)


@pytest.fixture
def arm(live):
    """Without an emergency."""
    live[0].confirms = True
    live[0].stop.acknowledge()
    return live[0]


@pytest.fixture
def open_run(live):
    return live[1]


@pytest.fixture
def own_arm(tmp_path):
    with live_arm(tmp_path / "one") as arm:
        yield arm


def state(console):
    return httpx.get(f"{console.address}api/state", headers=console.headers).json()["state"]


def press(console, press_id=None):
    """The answer of the console, and the time it took."""
    press_id = press_id or secrets.token_hex(8)
    started_s = time.monotonic()
    url = f"{console.address}api/stop?press={press_id}"
    answer = httpx.post(url, headers=console.headers, timeout=ANSWER_S)
    return answer, time.monotonic() - started_s


def stop_socket(console):
    return websockets.connect(
        console.address.replace("http", "ws") + "ws/stop", additional_headers=console.headers
    )


async def receive(line):
    return json.loads(await asyncio.wait_for(line.recv(), ANSWER_S))


def presses(arm, *, since=0):
    return [record for record in arm.stop.records(start=since) if record.kind is Kind.PRESS]


# ---- what a press does


def test_press_stops_the_run_and_reports_the_arms_that_confirmed(arm, open_run):
    console = open_run
    answer, _ = press(console)
    assert answer.json()["missing"] == [] and answer.json()["confirmed"][0]["arm"] == "robot"
    assert arm.stop.emergency and arm.stop.source == "console, anonymous"
    assert state(console)["stop"] == {
        "pressed_by": "console, anonymous",
        "arms": [{"name": "robot", "stopped": True, "confirmed": True}],
    }
    httpx.post(f"{console.address}api/event", headers=console.headers, json={"event": "acknowledge"})
    assert not arm.stop.emergency


def test_press_by_websocket_and_by_request_is_one_press(arm, open_run):
    console, since = open_run, arm.stop.position

    async def go():
        async with stop_socket(console) as line:
            await line.send("one press")
            assert await receive(line) == {"press": "one press", "sent": True}
            confirmed = await receive(line)
            assert confirmed["missing"] == [] and [one["arm"] for one in confirmed["confirmed"]] == ["robot"]

    asyncio.run(go())
    assert press(console, "one press")[0].json()["missing"] == []
    assert len(presses(arm, since=since)) == 1


def test_missing_confirmation_is_reported_after_a_second(arm, open_run):
    arm.confirms = False
    answer, _ = press(open_run)
    assert answer.json()["confirmed"] == [] and answer.json()["missing"] == ["robot"]
    assert arm.stop.emergency


def test_every_kind_of_websocket_message_is_a_press(arm, open_run):
    console, since = open_run, arm.stop.position

    async def go():
        async with stop_socket(console) as line:
            for number, message in enumerate(("", b"\x00\xff", "x" * 5000), start=1):
                await line.send(message)
                while "confirmed" in (await receive(line)):
                    pass
                wait_until(lambda number=number: len(presses(arm, since=since)) == number)

    asyncio.run(go())


def test_press_without_a_run_is_refused(console):
    answer, _ = press(console)
    assert answer.status_code == 409 and "STOP was not sent" in answer.json()["detail"]


def test_press_without_the_token_is_refused(arm, open_run):
    console = open_run
    assert httpx.post(f"{console.address}api/stop").status_code == 401

    async def go():
        async with websockets.connect(console.address.replace("http", "ws") + "ws/stop"):
            pass

    with pytest.raises(websockets.InvalidStatus):
        asyncio.run(go())
    assert not arm.stop.emergency


class BrokenRobot:
    """Its state cannot be rendered."""

    name = "robot"

    def __init__(self):
        self.events = []

    def refresh(self):
        pass

    def beat(self):
        pass

    def close(self):
        pass

    def state(self):
        raise RuntimeError("the state cannot be rendered")

    def post(self, event, *, session):
        self.events.append(event)


def app_of(robot, folder):
    arms = LiveArms(folder, first=robot)
    run = SimpleNamespace(arms=arms, stop=ConsoleStop(folder, arms), history=RunHistory(RunFiles(folder)))
    return make_app(run)


def test_press_is_sent_even_if_the_state_cannot_be_rendered(tmp_path):
    robot = BrokenRobot()
    with TestClient(app_of(robot, tmp_path), raise_server_exceptions=False) as client:
        assert client.get("/api/state").status_code == 500
        assert client.post("/api/stop").json()["sent"]
        assert client.post("/api/event", json={"event": "emergency"}).json() == {"sent": True}
        with client.websocket_connect("/ws/stop") as line:
            line.send_text("x")
            assert line.receive_json()["sent"]
    assert robot.events == [Event.EMERGENCY] * 3


def test_press_reaches_the_run_even_if_the_mailbox_refuses(arm):
    def refuse(event, *, session):
        raise UsageError("another console is connected")

    stop = ConsoleStop(arm.run, SimpleNamespace(post=refuse))
    with pytest.raises(UsageError, match="STOP was not sent"):
        stop.press("1", source="console")
    stop.use(stop.find())
    stop.press("2", source="console")
    assert arm.stop.emergency


# ---- whatever else happens


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < NUM_STRANGERS + 500:
        pytest.fail(f"the hard limit of open files is {hard}", pytrace=False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_stop_is_answered_while_2000_strangers_are_connected(arm, open_run, many_files):
    console, since = open_run, arm.stop.position
    starts = (
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /api/stop HTTP/1.1\r\nContent-Length: 9\r\n\r\nx",
    )

    async def go():
        async with stop_socket(console) as line:
            with contextlib.ExitStack() as stack:
                for number in range(NUM_STRANGERS):
                    stranger = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), ANSWER_S))
                    with contextlib.suppress(OSError):
                        stranger.sendall(starts[number % len(starts)])
                answer, _ = await asyncio.to_thread(press, console, "by request")
                assert answer.json()["missing"] == []
                await line.send("by websocket")
                assert (await receive(line))["sent"]

    asyncio.run(go())
    assert len(presses(arm, since=since)) == 2


def test_silent_stranger_is_closed_and_long_headers_are_cut_off(console):
    started_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", console.port), timeout=30) as silent:
        with socket.create_connection(("127.0.0.1", console.port), timeout=30) as talker:
            talker.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            with contextlib.suppress(OSError):
                for _ in range(200):
                    talker.sendall(b"X-Header: " + b"x" * 1000 + b"\r\n")
                assert talker.recv(100) == b""
        assert time.monotonic() - started_s < 4.0  # cut off by its size
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(100) == b""  # by its time
        assert time.monotonic() - started_s < 25.0


@contextlib.contextmanager
def asking(console, *paths):
    """Threads that request these paths until the end, as open pages do."""
    ended = threading.Event()

    def ask(path):
        with httpx.Client(headers=console.headers, timeout=60) as client:
            while not ended.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.get(console.address.rstrip("/") + path)

    threads = [threading.Thread(target=ask, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    yield
    ended.set()


@pytest.mark.extended
def test_stop_is_answered_while_the_disk_hangs(own_arm, tmp_path):
    flag = tmp_path / "hangs"
    console = start_console(own_arm.run, trouble=f"hang={flag}")
    try:
        wait_until(lambda: state(console))
        flag.touch()
        paths = [
            "/api/episodes",
            "/api/history",
            "/api/episodes/e0/thumbnail",
            "/api/learner",
            "/api/label/queue?page=0",
        ]
        with asking(console, *paths * 8, "/learning"):
            time.sleep(1.0)  # the console looks for the run meanwhile
            answer, _ = press(console)
            assert answer.json()["missing"] == [] and own_arm.stop.emergency
            assert own_arm.link.attended  # the run still knows that a console is open
            page = httpx.get(console.address, headers=console.headers, timeout=ANSWER_S)
            assert page.status_code == 200
            flag.unlink()
    finally:
        flag.unlink(missing_ok=True)
        end_console(console)


@pytest.mark.extended
def test_stop_is_answered_while_100000_episodes_are_listed(tmp_path):
    num = 100_000
    event = {"event": "episode", "success": 1.0, "return": 1.0, "human_share": 0.0, "policy_version": 3}
    with memory_folder() as memory, live_arm(Path(memory) / "one") as arm:
        template = made_run(tmp_path / "template", made_episode("e1")).episodes / "e1"
        many_episodes(arm.run / "episodes", template, num)
        with (arm.run / "events.jsonl").open("w") as events:
            for number in range(num):
                events.write(json.dumps({**event, "id": f"e{number:06d}", "env_steps": 10 * number}) + "\n")
        console = start_console(arm.run)
        try:
            wait_until(lambda: state(console))
            with asking(console, "/api/episodes?sort=task", "/api/episodes?text=e09", "/api/history"):
                found, times_s = list_and_press(console)
            assert len(times_s) >= 20, "the listing ended before STOP was measured"
            # A few answers may take longer on a machine that is busy with other tests.
            assert statistics.quantiles(times_s, n=20)[-1] < 0.5 and max(times_s) < 2.0, sorted(times_s)[-10:]
            assert {(answer["total"], *answer["problems"]) for answer in found} <= {(num,)}
            history = httpx.get(f"{console.address}api/history", headers=console.headers, timeout=60).json()
            assert history["num_episodes"] == num and history["curves"]["success"][-1] == [10.0 * (num - 1), 1.0]
        finally:
            end_console(console)


def list_and_press(console):
    """Press STOP until the list of episodes has come, but at most for 30 s. Returns the list and the times of the answers.

    The console answers a request for the list after 15 s at the latest, and goes on reading it."""
    listed, times_s, ended_s = [], [], time.monotonic() + 30.0

    def ask():
        while not listed and time.monotonic() < ended_s:
            answer = httpx.get(f"{console.address}api/episodes?limit=5", headers=console.headers, timeout=60)
            listed.extend([answer.json()] if answer.status_code == 200 else [])

    thread = threading.Thread(target=ask)
    thread.start()
    with httpx.Client(headers=console.headers, timeout=ANSWER_S) as page:  # an open page has a connection
        while thread.is_alive():
            started_s = time.monotonic()
            answer = page.post(f"{console.address}api/stop?press={secrets.token_hex(8)}")
            times_s.append(time.monotonic() - started_s)
            assert answer.json()["missing"] == []
            thread.join(0.1)
    return listed, times_s
