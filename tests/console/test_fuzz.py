"""The console's surface under nonsense: it refuses, it goes on, and nothing of the machine leaks out."""

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
CLIENT = httpx.Client()  # one: making it takes longer than asking
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")


def raw(console, request: bytes, *, hang_up: bool = False) -> bytes:
    """The answer to bytes as they are: clients would tidy them up."""
    with socket.create_connection(("127.0.0.1", console.port), timeout=5) as line:
        line.sendall(request)
        if hang_up:
            line.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def still_there(console) -> bool:
    return CLIENT.get(f"{console.address}api/state", headers=console.headers).json() == {"state": None}


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out(console, path):
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
    endpoint=st.sampled_from(["", "api/event", "api/state", "api/story", "ws/drive", "learning", "static"]),
    known=st.booleans(),
)
def test_any_request_is_answered_and_never_by_a_crash(console, method, path, body, endpoint, known):
    url = f"{console.address}{endpoint}" + (f"/{quote(path)}" if path else "")
    headers = console.headers if known else {}
    answer = CLIENT.request(method, url, content=body, headers={**headers, "Content-Type": "application/json"})
    assert answer.status_code < 500
    assert known or answer.status_code == 401


@QUICK
@given(st.binary(max_size=300))
def test_bytes_that_are_no_http_are_survived(console, junk):
    raw(console, junk, hang_up=True)
    assert still_there(console)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"event": "explode"}', b'{"event": 1}', b'{"event": "start", "x": 1}', b"[" * 50_000, b'"\xff"'],
)
def test_an_event_that_is_none_is_refused(console, body):
    headers = {**console.headers, "Content-Type": "application/json"}
    answer = CLIENT.post(f"{console.address}api/event", headers=headers, content=body)
    assert answer.status_code in (400, 422)


def test_an_event_of_a_run_that_is_over_is_refused_in_plain_words(console):
    answer = CLIENT.post(f"{console.address}api/event", headers=console.headers, json={"event": "start"})
    assert answer.status_code == 409 and "not running" in answer.json()["detail"]


def speak(console, path, messages):
    """What a websocket closes with after these."""

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
    return json.dumps({"n": n, "held": True, "axes": axes})


@pytest.mark.parametrize(
    "messages",
    [
        ["nonsense"],
        ["[" * 900],
        ["x" * 5000],
        [drive(0, 0.0)],
        [drive(1, 7.0)],
        [json.dumps({"n": 1, "held": True, "axes": [float("nan")]})],
        [b"\x00\x01"],
        ["y" * ((1 << 20) + 1)],  # more than any websocket here takes
    ],
)
def test_a_driver_who_talks_nonsense_is_shown_out(console, messages):
    assert speak(console, "ws/drive", messages) in (1008, 1009, 1000, 1006)
    assert still_there(console)


def test_a_camera_that_is_none_is_refused(console):
    for camera in ("", "front", "../../etc/passwd", "x" * 5000):
        assert speak(console, f"ws/frames?camera={camera}", []) == 4404


def test_many_sockets_at_once_are_survived(console):
    dice = random.Random(0)

    async def one():
        path = dice.choice(["ws/state", "ws/drive", "_nicegui_ws/socket.io/?EIO=4&transport=websocket"])
        uri = console.address.replace("http", "ws") + path
        async with websockets.connect(uri, additional_headers=console.headers) as line:
            if dice.random() < 0.5:
                await line.send(dice.randbytes(30) if dice.random() < 0.5 else "4" * 30)
            if dice.random() < 0.5:
                line.transport.abort()

    async def go():
        await asyncio.gather(*(one() for _ in range(40)), return_exceptions=True)

    asyncio.run(go())
    assert still_there(console)
