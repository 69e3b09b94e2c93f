"""Invalid requests: the console refuses them, keeps running, and reveals nothing of the machine."""

import asyncio
import json
import random
import socket
from importlib.metadata import version
from urllib.parse import quote

import httpx
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from support.console_process import end_console, start_console
from support.fuzz.memory import limit_memory
from support.fuzz.mutate import mutate_bytes, mutate_json
from support.made_runs import made_episode, made_run

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TRAVERSALS = (
    "/static/{v}/../../app.py",
    "/static/{v}/..%2f..%2fapp.py",
    "/static/{v}/%2e%2e/%2e%2e/app.py",
    "/static/{v}/..%5c..%5capp.py",
    "/static/{v}//etc/passwd",
    "/static/{v}/....//....//app.py",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/_nicegui/3.18.0/resources/x/../../../../etc/passwd",
    "/_nicegui/3.18.0/libraries/..%2f..%2f__init__.py",
    "/static/{v}/%00",
)
CLIENT = httpx.Client()  # one for all: creating it takes longer than a request
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")


def raw(console, request: bytes, *, half_close: bool = False) -> bytes:
    """The answer to raw bytes; HTTP clients would normalize them."""
    with socket.create_connection(("127.0.0.1", console.port), timeout=5) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def is_alive(console) -> bool:
    return CLIENT.get(f"{console.address}api/state", headers=console.headers).json()["state"] is None


@pytest.mark.extended
@pytest.mark.parametrize("path", TRAVERSALS)
def test_path_traversal_is_refused(console, path):
    headers = f"Host: 127.0.0.1\r\nAuthorization: Bearer {console.token}\r\nConnection: close"
    request = f"GET {path.format(v=version('dovetail'))} HTTP/1.1\r\n{headers}\r\n\r\n"
    answer = raw(console, request.encode())
    assert b" 40" in answer.split(b"\r\n")[0], answer[:100]
    assert b"root:" not in answer and b"make_app" not in answer


@QUICK
@given(
    method=st.sampled_from(METHODS),
    path=st.text(max_size=40) | st.binary(max_size=40),
    body=st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists).map(
        lambda data: json.dumps(data).encode()
    ),
    endpoint=st.sampled_from(["", "api/event", "api/state", "api/history", "ws/drive", "learning", "static"]),
    with_token=st.booleans(),
)
def test_any_request_gets_an_answer_below_500(console, method, path, body, endpoint, with_token):
    url = f"{console.address}{endpoint}" + (f"/{quote(path)}" if path else "")
    headers = console.headers if with_token else {}
    answer = CLIENT.request(method, url, content=body, headers={**headers, "Content-Type": "application/json"})
    assert answer.status_code < 500
    assert with_token or answer.status_code == 401


@QUICK
@given(st.binary(max_size=300))
def test_console_survives_bytes_that_are_not_http(console, junk):
    raw(console, junk, half_close=True)
    assert is_alive(console)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"event": "explode"}', b'{"event": 1}', b'{"event": "start", "x": 1}', b"[" * 50_000, b'"\xff"'],
)
def test_invalid_event_is_refused(console, body):
    headers = {**console.headers, "Content-Type": "application/json"}
    answer = CLIENT.post(f"{console.address}api/event", headers=headers, content=body)
    assert answer.status_code in (400, 422)


def test_event_for_a_finished_run_is_refused(console):
    answer = CLIENT.post(f"{console.address}api/event", headers=console.headers, json={"event": "start"})
    assert answer.status_code == 409 and "not running" in answer.json()["detail"]


def close_code(console, path, messages):
    """The code with which a websocket closes after these messages."""

    async def go():
        uri = console.address.replace("http", "ws") + path
        async with websockets.connect(uri, additional_headers=console.headers, max_size=None) as line:
            try:
                for message in messages:
                    await line.send(message)
                async with asyncio.timeout(5):
                    async for _ in line:
                        pass
            except websockets.ConnectionClosed:
                pass
            return line.close_code

    return asyncio.run(go())


def drive(n, *axes):
    return json.dumps({"n": n, "t": 1.0, "held": True, "axes": axes})


@pytest.mark.parametrize(
    "messages",
    [
        ["nonsense"],
        ["[" * 900],
        ["x" * 5000],
        [drive(0, 0.0)],
        [drive(1, 7.0)],
        [json.dumps({"n": 1, "t": 1.0, "held": True, "axes": [float("nan")]})],
        [b"\x00\x01"],
        ["y" * ((1 << 20) + 1)],  # more than a websocket accepts
    ],
)
def test_invalid_drive_messages_close_the_connection(console, messages):
    assert close_code(console, "ws/drive", messages) in (1008, 1009, 1000, 1006)
    assert is_alive(console)


def test_unknown_camera_is_refused(console):
    for camera in ("", "front", "../../etc/passwd", "x" * 5000):
        assert close_code(console, f"ws/frames?camera={camera}", []) == 4404


def test_console_survives_many_sockets(console):
    rng = random.Random(0)

    async def one():
        path = rng.choice(["ws/state", "ws/drive", "_nicegui_ws/socket.io/?EIO=4&transport=websocket"])
        uri = console.address.replace("http", "ws") + path
        async with websockets.connect(uri, additional_headers=console.headers) as line:
            if rng.random() < 0.5:
                await line.send(rng.randbytes(30) if rng.random() < 0.5 else "4" * 30)
            if rng.random() < 0.5:
                line.transport.abort()

    async def go():
        await asyncio.gather(*(one() for _ in range(40)), return_exceptions=True)

    asyncio.run(go())
    assert is_alive(console)


PAGE = "0" * 32
REQUESTS = (
    ("POST", "api/event", {}, {"event": "start", "arm": ""}),
    ("POST", "api/acknowledge", {}, {"robot": "panda"}),
    ("POST", "api/stop", {"press": "abc"}, {}),
    ("POST", "api/deployment", {}, {"change": "approve", "seen": "version 3"}),
    ("POST", "api/downloads", {}, {"kind": "video", "ids": ["e1", "e2"]}),
    (
        "GET",
        "api/episodes",
        {"sort": "number", "descending": "true", "offset": "0", "limit": "9", "text": "e"},
        {},
    ),
    ("GET", "api/episodes/e1", {}, {}),
    ("GET", "api/episodes/e1/frames/0/0", {}, {}),
    ("GET", "api/episodes/e1/thumbnail", {}, {}),
    ("GET", "api/downloads/0123456789abcdef0123456789abcdef", {}, {}),
    ("GET", "api/label/queue", {"page": PAGE}, {}),
    ("POST", "api/label/claim", {}, {"page": PAGE, "count": 3, "skip": ["e1"]}),
    ("POST", "api/label/renew", {}, {"page": PAGE, "ids": ["e1"]}),
    ("POST", "api/label/release", {}, {"page": PAGE, "ids": ["e1"]}),
    ("POST", "api/label/episodes/e1/claim", {}, {"page": PAGE}),
    (
        "POST",
        "api/label/episodes/e1/label",
        {},
        {
            "page": PAGE,
            "verdict": "success",
            "marks": [{"first": 0, "last": 2, "reward": 1.0}],
            "queued": False,
        },
    ),
    ("POST", "api/label/episodes/e1/retract", {}, {"page": PAGE}),
)
SOCKETS = {
    "ws/drive": drive(1, 0.0, 0.5),
    "ws/stop": "press-1",
    "ws/state": "x",
    "ws/frames?camera=front": "shown",
}
TEXTS = ("", "-1", "9" * 30, "NaN", "a\nb", "../../etc/passwd", "x" * 5000, "\0", "\u20ac", "true", "%s%n")
SIZES = [60, pytest.param(1500, marks=pytest.mark.extended)]


@pytest.fixture(scope="module")
def limited_console(tmp_path_factory):
    """The console of a finished run with two episodes; it may take 256 MB more than at its start."""
    run = made_run(tmp_path_factory.mktemp("runs") / "one", made_episode("e1"), made_episode("e2", images=False))
    opened = start_console(run.path)
    assert is_alive(opened)
    limit_memory(opened.process.pid)
    yield opened
    assert end_console(opened) == 0


def repeat(num_examples, test):
    kept = settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
    kept(given(st.data())(test))()


@pytest.mark.parametrize("num_examples", SIZES)
def test_changed_requests_are_answered_or_refused_in_one_line(limited_console, num_examples):
    def send(data):
        method, path, query, body = data.draw(st.sampled_from(REQUESTS))
        content = json.dumps(body).encode()
        how = data.draw(st.sampled_from(["path", "query", "body", "body", "bytes"]))
        if how == "path":
            parts = path.split("/")
            parts[data.draw(st.integers(1, len(parts) - 1))] = quote(data.draw(st.sampled_from(TEXTS)), safe="")
            path = "/".join(parts)
        elif how == "query":
            names = st.sampled_from([*query, "arm", "page", "press"])
            query = {**query, data.draw(names): data.draw(st.sampled_from(TEXTS))}
        elif how == "body":
            content = json.dumps(mutate_json(data, body)).encode()
        else:
            content = mutate_bytes(data, content)
        headers = {**limited_console.headers, "Content-Type": "application/json"}
        answer = CLIENT.request(
            method, f"{limited_console.address}{path}", params=query, content=content, headers=headers
        )
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
            detail = answer.json()["detail"]
            assert isinstance(detail, str) and "\n" not in detail and len(detail) < 6000

    repeat(num_examples, send)
    assert is_alive(limited_console)


@pytest.mark.parametrize("num_examples", SIZES)
def test_any_websocket_message_is_answered_or_closes_its_connection(limited_console, num_examples):
    def send(data):
        path = data.draw(st.sampled_from(sorted(SOCKETS)))
        message = mutate_bytes(data, SOCKETS[path].encode())
        if data.draw(st.booleans()):
            message = message.decode(errors="replace")
        elif path == "ws/drive":
            message = json.dumps(mutate_json(data, json.loads(SOCKETS[path])))
        uri = limited_console.address.replace("http", "ws") + path
        with connect(uri, additional_headers=limited_console.headers, max_size=None) as line:
            try:
                line.send(message)
                answer = json.loads(line.recv(timeout=10)) if path != "ws/frames?camera=front" else {}
                assert isinstance(answer, dict)
            except websockets.ConnectionClosed:
                pass
        assert line.close_code in (1000, 1006, 1008, 1009, 4404)

    repeat(num_examples, send)
    assert is_alive(limited_console)
