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
