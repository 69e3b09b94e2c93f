"""Endpoints of the live pages: the robot's state and images, events such as start and stop, and driving."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException, WebSocket, WebSocketDisconnect

from dovetail.config.model import Config
from dovetail.console.cameras import Cameras
from dovetail.console.drive_control import DriveControl, InvalidMessage
from dovetail.console.layout import user_name
from dovetail.console.run_files import OpenRun
from dovetail.console.run_history import RunHistory
from dovetail.core.errors import DovetailError
from dovetail.core.types import Event

__all__ = ["make_app"]

_STATE_S = 0.1
_REFRESH_S = 0.5


class EventRequest(Config):
    event: Event


class AcknowledgeRequest(Config):
    robot: str


def make_app(run: OpenRun) -> FastAPI:
    """An application with these endpoints only. While it is up, it checks whether the run is active."""
    control, history, cameras = DriveControl(run.robot), RunHistory(run.files), Cameras(run.robot)

    async def refresh() -> None:
        while True:
            run.robot.refresh()
            await asyncio.sleep(_REFRESH_S)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        run.robot.refresh()
        task = asyncio.create_task(refresh())
        yield
        task.cancel()
        await cameras.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    def state() -> dict[str, Any]:
        found = run.robot.state()
        if found is None:
            return {"state": None}
        values = {**asdict(found), "driver": control.name_of(found.driver), "axes": list(run.robot.axes)}
        return {"state": _finite(values)}

    @app.get("/api/state")
    async def get_state() -> dict[str, Any]:
        return state()

    @app.get("/api/history")
    async def get_history() -> dict[str, Any]:
        history.read()
        keys = ("name", "weights", "env_steps", "rate", "low", "high", "episodes", "time")
        return {
            "curves": history.curves(),
            "num_episodes": history.num_episodes,
            "advice": history.advice(),
            "evaluations": [{key: one[key] for key in keys if key in one} for one in history.evaluations[-200:]],
        }

    @app.get("/api/cameras")
    async def get_cameras() -> dict[str, Any]:
        return {"cameras": await cameras.names()}

    @app.post("/api/event")
    async def post_event(request: EventRequest) -> dict[str, bool]:
        if run.robot.state() is None:
            raise HTTPException(409, "this run is not running: the event was not sent")
        try:
            run.robot.post(request.event, session=1)
        except DovetailError as error:
            raise HTTPException(409, str(error)) from error
        return {"sent": True}

    @app.post("/api/acknowledge")
    async def post_acknowledge(request: AcknowledgeRequest) -> dict[str, bool]:
        """Acknowledge one of several arms by its name; the arm that is driven is acknowledged by an event."""
        found = run.robot.state()
        rows = found.facts.get("roles", ()) if found is not None else ()
        if request.robot not in {row["name"] for row in rows if row.get("problem")}:
            raise HTTPException(409, f"{request.robot} has not stopped")
        run.files.acknowledge(request.robot)
        return {"sent": True}

    @app.websocket("/ws/state")
    async def states(socket: WebSocket) -> None:
        """The state, at most ten times per second, when it has changed."""
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
        """JPEGs. The next one is sent when the page has reported that it shows the last: a slow page skips images."""
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
        """See `drive_control`. If the connection ends while it drives, the arm holds."""
        await socket.accept()
        session = control.connect(user_name(socket))
        try:
            while True:
                other = session.receive(await socket.receive_text())
                if other is not None:
                    await socket.send_json({"n": session.last, "refused": f"{other} is driving"})
                else:
                    await socket.send_json({"n": session.last})
        except InvalidMessage as error:
            await socket.close(1008, str(error)[:120])
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass  # disconnected, or not text
        finally:
            control.disconnect(session)

    return app


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither, and the page must go on when a sensor fails."""
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
    """A task that ends when the other side disconnects."""

    async def until_closed() -> None:
        with contextlib.suppress(RuntimeError):
            while (await socket.receive())["type"] != "websocket.disconnect":
                on_message()

    task = asyncio.create_task(until_closed())
    try:
        yield task
    except (WebSocketDisconnect, RuntimeError):
        pass  # disconnected while we sent
    finally:
        task.cancel()
