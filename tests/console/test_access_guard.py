"""Without the token there is no access: by HTTP, by our websockets, or by NiceGUI's."""

import asyncio
import json
import subprocess
import sys

import httpx
import pytest
import websockets

SOCKET_IO = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
PATHS = ("/", "/takeover", "/learning", "/api/state", "/nowhere", "/static/../app.py", SOCKET_IO)
SOCKETS = ("/ws/state", "/_nicegui_ws/socket.io/?EIO=4&transport=websocket", "/ws/nowhere")


def get(console, path, **headers):
    return httpx.get(console.address.rstrip("/") + path, headers=headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"Cookie": "dovetail_{port}=wrong"}],
    ids=["nothing", "wrong", "basic", "cookie"],
)
def test_request_without_the_token_is_refused(console, path, headers):
    given = {name: value.format(port=console.port) for name, value in headers.items()}
    answer = get(console, path, **given)
    assert answer.status_code == 401
    assert "token" in answer.text and console.token not in answer.text


def test_wrong_token_in_the_address_is_refused(console):
    answer = get(console, f"/?token={console.token[:-1]}")
    assert answer.status_code == 401 and "set-cookie" not in answer.headers


def test_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(console):
    answer = get(console, f"/learning?a=1&token={console.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/learning?a=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and console.token not in cookie
    assert get(console, "/api/state", Cookie=cookie.partition(";")[0]).status_code == 200


def test_redirect_stays_on_this_host(console):
    answer = httpx.get(f"{console.address}/evil.example/?token={console.token}")
    assert answer.headers["location"] == "/evil.example/"


def test_link_from_another_site_gets_a_page_that_reloads(console):
    answer = get(console, f"/?token={console.token}", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200 and "url=/" in answer.text and console.token not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "192.168.0.7"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_foreign_host_or_origin_is_refused_even_with_the_token(console, headers):
    assert get(console, "/api/state", **console.headers, **headers).status_code == 403


def test_forwarded_port_and_localhost_are_accepted(console):
    for host in ("localhost:9", "127.0.0.1", "[::1]:80"):
        assert get(console, "/api/state", **console.headers, Host=host).status_code == 200


def connect(console, path, **headers):
    """The first message of a websocket, or the HTTP status of its refusal."""

    async def go():
        uri = console.address.replace("http", "ws").rstrip("/") + path
        try:
            async with websockets.connect(uri, additional_headers=headers) as socket:
                return await asyncio.wait_for(socket.recv(), 5)
        except websockets.InvalidStatus as refusal:
            return refusal.response.status_code

    return asyncio.run(go())


@pytest.mark.parametrize("path", SOCKETS)
def test_websockets_need_the_token_and_our_origin(console, path):
    assert connect(console, path) == 403
    assert connect(console, path, Authorization="Bearer wrong") == 403
    assert (
        connect(console, f"{path}{'&' if '?' in path else '?'}token={console.token}") == 403
    )  # only page requests exchange it
    assert connect(console, path, **console.headers, Origin="http://evil.example") == 403


def test_websockets_with_the_token_are_accepted(console):
    assert json.loads(connect(console, "/ws/state", **console.headers)) == {"arms": [], "state": None}
    assert connect(console, SOCKETS[1], **console.headers)[0] == "0"


def test_too_long_body_is_refused(console):
    address = f"{console.address}api/event"
    try:
        status = httpx.post(address, headers=console.headers, content=b"x" * (1 << 20) + b"x").status_code
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        # It may close the connection while the body is still on its way.
        status = 413
    assert status == 413


def test_second_console_prints_the_address_of_the_first(console):
    command = [sys.executable, "-m", "dovetail.cli", "console", str(console.run), "--no-open"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert console.address in second.stderr and console.token not in second.stderr


def test_browser_needs_the_printed_address(console, page):
    page.goto(console.address)
    assert "needs its token" in page.inner_text("h1")
    console.enter(page)
    assert page.url == console.address
    assert page.inner_text("#dt-control") == "Not running"
