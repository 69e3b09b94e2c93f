"""What our scripts talk to besides NiceGUI: the robot's state and pictures, what a person says, and how it is driven."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect

from dovetail.config.model import Config
from dovetail.console.cameras import Cameras
from dovetail.console.curves import Story
from dovetail.console.handles import Handles
from dovetail.console.layout import person
from dovetail.console.wheel import Refused, Wheel
from dovetail.core.errors import DovetailError
from dovetail.core.types import Event

__all__ = ["make"]

_STATE_S = 0.1
_REFRESH_S = 0.5


class Said(Config):
    event: Event


class SeenTo(Config):
    robot: str


def make(handles: Handles) -> FastAPI:
    """The application, with nothing but this in it. While it runs, it keeps looking whether the run does."""
    wheel, story, cameras = Wheel(handles.driver), Story(handles.run), Cameras(handles.robot)

    async def look() -> None:
        while True:
            handles.robot.refresh()
            await asyncio.sleep(_REFRESH_S)

    @contextlib.asynccontextmanager
    async def while_running(app: FastAPI) -> AsyncIterator[None]:
        handles.robot.refresh()
        task = asyncio.create_task(look())
        yield
        task.cancel()
        await cameras.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=while_running)

    def state() -> dict[str, Any]:
        found = handles.robot.state()
        if found is None:
            return {"state": None}
        told = {**asdict(found), "driver": wheel.name_of(found.driver), "axes": list(handles.robot.axes)}
        return {"state": _finite(told)}

    @app.get("/api/state")
    async def get_state() -> dict[str, Any]:
        return state()

    @app.get("/api/story")
    async def get_story() -> dict[str, Any]:
        story.read()
        keys = ("name", "weights", "env_steps", "rate", "low", "high", "episodes", "time")
        return {
            "curves": story.curves(),
            "num_episodes": story.num_episodes,
            "advice": story.advice(),
            "evaluations": [{key: one[key] for key in keys if key in one} for one in story.evaluations[-200:]],
        }

    @app.get("/api/cameras")
    async def get_cameras() -> dict[str, Any]:
        return {"cameras": await cameras.names()}

    @app.post("/api/event")
    async def post_event(said: Said, request: Request) -> dict[str, bool]:
        if handles.robot.state() is None:
            raise HTTPException(409, "the run is not running: nobody hears this")
        try:
            handles.driver.post(said.event, session=1)
        except DovetailError as error:
            raise HTTPException(409, str(error)) from error
        return {"sent": True}

    @app.post("/api/acknowledge")
    async def post_seen_to(seen: SeenTo) -> dict[str, bool]:
        """Of an arm by its name, where there are several; a person who drives one acknowledges it by an event."""
        found = handles.robot.state()
        rows = found.facts.get("roles", ()) if found is not None else ()
        if seen.robot not in {row["name"] for row in rows if row.get("problem")}:
            raise HTTPException(409, f"{seen.robot} has not stopped")
        handles.run.acknowledge(seen.robot)
        return {"sent": True}

    @app.websocket("/ws/state")
    async def states(socket: WebSocket) -> None:
        """The state, ten times a second, when it has changed."""
        await socket.accept()
        last: dict[str, Any] | None = None
        async with _while_open(socket) as closed:
            while not closed.done():
                now = state()
                if now != last:
                    await socket.send_json(now)
                    last = now
                await asyncio.wait([closed], timeout=_STATE_S)

    @app.websocket("/ws/frames")
    async def frames(socket: WebSocket, camera: str = "") -> None:
        """JPEGs. The next one is sent once the page has said that it has shown the last: a slow one skips."""
        await socket.accept()
        if camera not in await cameras.names():
            await socket.close(4404, "there is no such camera")
            return
        shown = asyncio.Event()
        shown.set()
        async with _while_open(socket, shown.set) as closed:
            sending = asyncio.create_task(_send_frames(socket, cameras, camera, shown))
            try:
                await asyncio.wait([closed, sending], return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()

    @app.websocket("/ws/drive")
    async def drive(socket: WebSocket) -> None:
        """See `wheel`. However it ends, whoever was driving then is lost, and the arm holds."""
        await socket.accept()
        seat = wheel.sit(person(socket))
        try:
            while True:
                other = seat.take(await socket.receive_text())
                if other is not None:
                    await socket.send_json({"n": seat.last, "refused": f"{other} is driving"})
                else:
                    await socket.send_json({"n": seat.last})
        except Refused as refusal:
            await socket.close(1008, str(refusal)[:120])
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass  # gone, or not text
        finally:
            wheel.leave(seat)

    return app


def _finite(value: Any) -> Any:
    """What is not finite as nothing: JSON knows no NaN, and a sensor that says so is just when a page must go on."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


async def _send_frames(socket: WebSocket, cameras: Cameras, camera: str, shown: asyncio.Event) -> None:
    number = -1
    with cameras.watch(camera), contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await shown.wait()
            number, data = await cameras.newer(camera, number)
            shown.clear()
            await socket.send_bytes(data)


@contextlib.asynccontextmanager
async def _while_open(
    socket: WebSocket, on_message: Callable[[], None] = lambda: None
) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when the other side has gone."""

    async def until_closed() -> None:
        with contextlib.suppress(RuntimeError):
            while (await socket.receive())["type"] != "websocket.disconnect":
                on_message()

    task = asyncio.create_task(until_closed())
    try:
        yield task
    except (WebSocketDisconnect, RuntimeError):
        pass  # gone while we sent
    finally:
        task.cancel()
