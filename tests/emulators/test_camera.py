"""The emulated camera: its streams, its faults on request, and its token."""

import json
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.emulators.camera.faults import FAULTS
from dovetail.emulators.camera.pictures import NUM_PICTURES, encode_jpeg, make_picture, picture_number
from dovetail.emulators.camera.server import CameraEmulator, CameraEmulatorConfig
from dovetail.emulators.emulator import Emulator, EmulatorProcess


@pytest.fixture
def camera():
    with CameraEmulator(CameraEmulatorConfig(size=(64, 48), fps=100.0)) as emulator:
        yield emulator


def post(camera, body, token):
    request = urllib.request.Request(
        camera.url.replace("/video.mjpg", "/fault"),
        data=body.encode(),
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.status


def test_it_is_an_emulator(camera):
    assert isinstance(camera, Emulator)
    assert camera.describe()[0].startswith("http://127.0.0.1:")


def test_each_picture_shows_its_number():
    from io import BytesIO

    from PIL import Image

    for number in range(NUM_PICTURES):
        jpeg = encode_jpeg(make_picture(number, width=640, height=480), quality=80)
        assert picture_number(np.asarray(Image.open(BytesIO(jpeg)))) == number


def test_pictures_change_with_each_frame(camera):
    with urllib.request.urlopen(camera.url, timeout=5) as stream:
        data = stream.read(30_000)
    parts = data.split(b"--dovetailframe\r\n")[1:-1]
    assert len(parts) > 5 and len(set(parts)) == len(parts)


def test_fault_needs_the_token(camera):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        post(camera, json.dumps({"fault": "freeze"}), "wrong")
    assert camera.fault.name == "none"
    assert post(camera, json.dumps({"fault": "freeze"}), camera.token) == 204
    assert camera.fault.name == "freeze"


@pytest.mark.parametrize("body", ["", "[]", '{"fault": "melt"}', '{"fault": "freeze", "seconds": "x"}'])
def test_wrong_request_is_refused(camera, body):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(camera, body, camera.token)


def test_fault_ends_after_its_time(camera):
    camera.misbehave("freeze", seconds=0.0)
    assert camera.fault.name == "none"
    camera.misbehave("freeze", after_s=60.0)
    assert camera.fault.name == "none"
    with pytest.raises(UsageError, match="no fault 'meltdown'"):
        camera.misbehave("meltdown")


def test_all_faults_have_a_description():
    from dovetail.emulators.camera.faults import Fault

    assert all(f"`{name}`" in (Fault.__doc__ or "") for name in FAULTS if name != "none")


@pytest.mark.extended
def test_it_runs_as_a_process():
    with EmulatorProcess("camera", "port=0", "size=[64,48]") as process:
        url = process.lines[0].split()[0]
        with urllib.request.urlopen(url, timeout=5) as stream:
            assert b"dovetailframe" in stream.read(100)


def test_request_with_a_negative_size_is_answered_at_once(camera):
    host, port = camera.url.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=2.0) as link:
        head = f"POST /fault HTTP/1.1\r\nAuthorization: Bearer {camera.token}\r\nContent-Length: -1\r\n\r\n"
        link.sendall(head.encode())
        assert b" 400 " in link.recv(100)
