"""The live endpoints with faulty sensors and cameras."""

import asyncio
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from dovetail.console.arms import LiveArms
from dovetail.console.cameras import Cameras
from dovetail.console.emergency import ConsoleStop
from dovetail.console.live_api import make_app
from dovetail.console.run_files import RunFiles
from dovetail.console.run_history import RunHistory
from dovetail.core.errors import UsageError
from dovetail.live.view import LiveState


class FaultyRobot:
    """A sensor reads NaN; one of two cameras is broken."""

    name = "robot"

    def __init__(self):
        self.num_frames = 0

    def refresh(self):
        pass

    def beat(self):
        pass

    def post(self, event, *, session):
        raise UsageError("no run is active")

    def state(self):
        values = {"force": [1.0, math.nan, math.inf]}
        return LiveState(
            control="fault", reason="", may_drive=True, driver=0, episode={}, step=0, prompt="", values=values,
            executed=[math.nan], health={}, policy_version=0, weights_age_s=None, mode="", hint=None,
            facts={"telemetry": {"x": math.nan}},
        )  # fmt: skip

    def drive_parts(self):
        return {"parts": [], "refusal": ""}

    def cameras(self):
        return ("broken", "gray")

    def frame(self, camera, newer_than):
        if camera == "broken":
            raise ValueError("the camera is broken")
        self.num_frames += 1
        return self.num_frames, np.full((6, 8, 1), 100, np.uint8)

    def close(self):
        pass


@pytest.fixture
def client(tmp_path):
    robot = FaultyRobot()
    arms = LiveArms(tmp_path, first=robot)
    run = SimpleNamespace(arms=arms, stop=ConsoleStop(tmp_path, arms), history=RunHistory(RunFiles(tmp_path)))
    with TestClient(make_app(run)) as client:
        yield client


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def test_non_finite_values_become_null(client):
    expected = {"force": [1.0, None, None]}
    answer = client.get("/api/state")
    assert answer.json()["state"]["values"] == expected
    with client.websocket_connect("/ws/state") as socket:
        state = json.loads(socket.receive_text(), parse_constant=refuse_constant)["state"]
    assert (state["values"], state["executed"], state["facts"]) == (expected, [None], {"telemetry": {"x": None}})


def test_broken_camera_does_not_affect_others():
    async def watch():
        cameras = Cameras(FaultyRobot())
        number = -1
        with cameras.watch("broken"), cameras.watch("gray"):
            for _ in range(3):
                number, data = await asyncio.wait_for(cameras.newer("gray", number), timeout=10.0)
                assert Image.open(io.BytesIO(data)).size == (8, 6)
        await cameras.close()

    asyncio.run(watch())
