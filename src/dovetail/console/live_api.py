"""Endpoints of the live pages: the robot's state and images, events such as start and stop, and driving.

STOP does not depend on anything else here: it is pressed before the state is looked at, and no file is read for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from starlette.requests import HTTPConnection
from starlette.types import Message

from dovetail.config.model import Config
from dovetail.console.cameras import Cameras
from dovetail.console.drive_control import DriveControl, InvalidMessage
from dovetail.console.emergency import ConsoleStop, Press
from dovetail.console.layout import user_name
from dovetail.console.run_files import OpenRun
from dovetail.console.threads import REFRESH, in_thread
from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.types import Event

__all__ = ["make_app"]

_STATE_S = 0.1
_REFRESH_S = 0.5
_MAX_ID = 64
_EVALUATION = ("name", "weights", "env_steps", "rate", "low", "high", "episodes", "time")


class EventRequest(Config):
    event: Event


class AcknowledgeRequest(Config):
    robot: str


def make_app(run: OpenRun) -> FastAPI:
    """An application with these endpoints only. While it is up, it checks whether the run is active."""
    control, cameras = DriveControl(run.robot), Cameras(run.robot)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await _refresh(run)
        tasks = [asyncio.create_task(_refresh_always(run)), asyncio.create_task(_beat_always(run))]
        yield
        for task in tasks:
            task.cancel()
        await cameras.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_stop(app, run)

    def state() -> dict[str, Any]:
        found = run.robot.state()
        if found is None:
            return {"state": None}
        values = {**asdict(found), "driver": control.name_of(found.driver), "axes": list(run.robot.axes)}
        return {"state": _finite({**values, "stop": run.stop.state()})}

    @app.get("/api/state")
    async def get_state() -> dict[str, Any]:
        return state()

    @app.get("/api/history")
    async def get_history() -> dict[str, Any]:
        found = await in_thread(run.history.summary)
        shown = {name: found[name] for name in ("curves", "num_episodes", "advice")}
        rows = [{key: one[key] for key in _EVALUATION if key in one} for one in found["evaluations"]]
        history: dict[str, Any] = _finite({**shown, "evaluations": rows})
        return history

    @app.get("/api/cameras")
    async def get_cameras() -> dict[str, Any]:
        return {"cameras": await cameras.names()}

    @app.post("/api/event")
    async def post_event(request: EventRequest, http: Request) -> dict[str, bool]:
        if request.event is Event.EMERGENCY:
            _press(run.stop, "", http)
            return {"sent": True}
        if run.robot.state() is None:
            raise HTTPException(409, "this run is not running: the event was not sent")
        try:
            run.robot.post(request.event, session=1)
        except DovetailError as error:
            raise HTTPException(409, str(error)) from error
        if request.event is Event.ACKNOWLEDGE:  # all arms that a STOP holds
            run.stop.acknowledge(source=_source(http))
        return {"sent": True}

    @app.post("/api/acknowledge")
    async def post_acknowledge(request: AcknowledgeRequest, http: Request) -> dict[str, bool]:
        """Acknowledge one of several arms by its name; the event `acknowledge` releases all arms."""
        found = run.robot.state()
        rows = found.facts.get("roles", ()) if found is not None else ()
        stopped = {row["name"] for row in rows if row.get("problem")} | run.stop.stopped_arms()
        if request.robot not in stopped:
            raise HTTPException(409, f"{request.robot} has not stopped")
        if not run.stop.acknowledge(source=_source(http), arm=request.robot):
            raise HTTPException(409, "this run is not running: nothing was acknowledged")
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


# ---- STOP


def _add_stop(app: FastAPI, run: OpenRun) -> None:
    @app.post("/api/stop")
    async def post_stop(http: Request, press: str = "") -> dict[str, Any]:
        """Stop all arms, and say which of them have confirmed it within a second."""
        pressed = _press(run.stop, press, http)
        return _confirmation(press, await run.stop.confirmed(pressed))

    @app.websocket("/ws/stop")
    async def stop_socket(socket: WebSocket) -> None:
        """Each message is a STOP; its text is the id of the press. Open on every page: a STOP needs no new connection."""
        await socket.accept()
        confirming: set[asyncio.Task[None]] = set()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # disconnected
            while True:
                press_id = _text(await socket.receive())
                try:
                    pressed = run.stop.press(press_id, source=_source(socket))
                except UsageError as error:
                    await socket.send_json({"press": press_id, "sent": False, "detail": str(error)})
                    continue
                await socket.send_json({"press": press_id, "sent": True})
                task = asyncio.create_task(_send_confirmation(socket, run.stop, press_id, pressed))
                confirming.add(task)
                task.add_done_callback(confirming.discard)


def _press(stop: ConsoleStop, press_id: str, connection: Request) -> Press:
    try:
        return stop.press(press_id[:_MAX_ID], source=_source(connection))
    except UsageError as error:
        raise HTTPException(409, str(error)) from error


def _source(connection: HTTPConnection) -> str:
    return f"console, {user_name(connection)}"


def _text(message: Message) -> str:
    """Of a websocket message. Anything that arrives is a STOP."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    return str(message.get("text") or "")[:_MAX_ID]


async def _send_confirmation(socket: WebSocket, stop: ConsoleStop, press_id: str, pressed: Press) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_json(_confirmation(press_id, await stop.confirmed(pressed)))


def _confirmation(press_id: str, found: dict[str, int | None]) -> dict[str, Any]:
    confirmed = [{"arm": arm, "ms": ms} for arm, ms in found.items() if ms is not None]
    missing = [arm for arm, ms in found.items() if ms is None]
    return {"press": press_id, "sent": True, "confirmed": confirmed, "missing": missing}


# ---- presence of the run


async def _refresh(run: OpenRun) -> None:
    """Never fails: whatever the folder contains, the console starts, and what is attached stays attached."""
    for step in (_refresh_stop, _refresh_arms):
        with contextlib.suppress(Exception):  # the disk hangs, or a file is damaged; STOP goes on
            await step(run)


async def _refresh_stop(run: OpenRun) -> None:
    run.stop.use(await in_thread(run.stop.find, pool=REFRESH))


async def _refresh_arms(run: OpenRun) -> None:
    await in_thread(run.robot.refresh, pool=REFRESH)


async def _refresh_always(run: OpenRun) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        await _refresh(run)


async def _beat_always(run: OpenRun) -> None:
    while True:
        run.robot.beat()
        await asyncio.sleep(_REFRESH_S)


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
