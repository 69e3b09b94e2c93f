"""What pages are told while something is wrong with the robot: they go on, and say what there is to say."""

import asyncio
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from dovetail.console import wire
from dovetail.console.cameras import Cameras
from dovetail.console.handles import LiveState


class Robot:
    """One whose sensor says NaN; of its cameras, one sees grey and one is broken."""

    axes = ("dx",)

    def __init__(self):
        self.num_frames = 0

    def refresh(self):
        pass

    def state(self):
        values = {"force": [1.0, math.nan, math.inf]}
        return LiveState(control="fault", values=values, executed=[math.nan], facts={"telemetry": {"x": math.nan}})

    def cameras(self):
        return ("broken", "grey")

    def frame(self, camera, newer_than):
        if camera == "broken":
            raise ValueError("a driver's own trouble")
        self.num_frames += 1
        return self.num_frames, np.full((6, 8, 1), 100, np.uint8)

    def close(self):
        pass


@pytest.fixture
def client():
    run = SimpleNamespace(name="run", events=lambda start: ((), 0))
    with TestClient(wire.make(SimpleNamespace(robot=Robot(), driver=None, run=run))) as client:
        yield client


def no_nan(name):
    raise AssertionError(f"{name} is no JSON")


def test_what_is_not_finite_is_told_as_nothing(client):
    wanted = {"force": [1.0, None, None]}
    answer = client.get("/api/state")
    assert answer.json()["state"]["values"] == wanted
    with client.websocket_connect("/ws/state") as socket:
        state = json.loads(socket.receive_text(), parse_constant=no_nan)["state"]
    assert (state["values"], state["executed"], state["facts"]) == (wanted, [None], {"telemetry": {"x": None}})


def test_a_camera_that_is_broken_leaves_the_others():
    async def look():
        cameras = Cameras(Robot())
        number = -1
        with cameras.watch("broken"), cameras.watch("grey"):
            for _ in range(3):
                number, data = await asyncio.wait_for(cameras.newer("grey", number), timeout=10.0)
                assert Image.open(io.BytesIO(data)).size == (8, 6)
        await cameras.close()

    asyncio.run(look())
