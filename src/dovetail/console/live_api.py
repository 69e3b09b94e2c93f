"""Endpoints of the live pages: state and images of an arm, events such as start and pause, and driving.

`arm` names one of the run's arms; without it, the first one is meant. STOP is in `stop_api`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, WebSocket, WebSocketDisconnect
from pydantic import Field

from dovetail.config.model import Config
from dovetail.console.arms import ConsoleArm
from dovetail.console.cameras import Cameras
from dovetail.console.drive_control import InvalidMessage
from dovetail.console.layout import user_name
from dovetail.console.run_files import OpenRun
from dovetail.console.stop_api import add_stop, press_stop, source_name
from dovetail.console.threads import REFRESH, in_thread
from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.types import Event

__all__ = ["make_app"]

_STATE_S = 0.1
_REFRESH_S = 0.5
_FIGURES = ("cycle_time_s", "per_minute", "per_minute_with_resets", "interventions_per_minute", "return")
_EVALUATION = ("name", "weights", "env_steps", "rate", "low", "high", "episodes", "time", *_FIGURES)
_MAX_NAME = 200
ArmName = Annotated[str, Query(max_length=_MAX_NAME)]
BrowserId = Annotated[str, Query(pattern="^[0-9a-f]{0,32}$")]


class EventRequest(Config):
    event: Event
    arm: str = Field(default="", max_length=_MAX_NAME)


def make_app(run: OpenRun) -> FastAPI:
    """An application with these endpoints only. While it is up, it checks whether the run is active."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await _refresh(run)
        tasks = [asyncio.create_task(_refresh_always(run)), asyncio.create_task(_beat_always(run))]
        yield
        for task in tasks:
            task.cancel()
        await run.arms.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    add_stop(app, run)
    _add_state(app, run)
    _add_frames(app, run)
    _add_drive(app, run)
    return app


def _add_state(app: FastAPI, run: OpenRun) -> None:
    def state(arm: str) -> dict[str, Any]:
        stop = run.stop.state()
        rows = run.arms.rows([one["name"] for one in stop["arms"]])
        found = None
        with contextlib.suppress(UsageError):  # no such arm: it has ended
            found = run.arms.get(arm).state()
        return {"arms": rows, "state": None if found is None else _finite({**found, "stop": stop})}

    @app.get("/api/state")
    async def get_state(arm: ArmName = "") -> dict[str, Any]:
        return state(arm)

    @app.get("/api/history")
    async def get_history() -> dict[str, Any]:
        found = await in_thread(run.history.summary)
        shown = {name: found[name] for name in ("curves", "num_episodes", "advice")}
        rows = [{key: one[key] for key in _EVALUATION if key in one} for one in found["evaluations"]]
        history: dict[str, Any] = _finite({**shown, "evaluations": rows})
        return history

    @app.post("/api/event")
    async def post_event(request: EventRequest, http: Request) -> dict[str, bool]:
        if request.event is Event.EMERGENCY:
            press_stop(run.stop, "", http)
            return {"sent": True}
        robot = _arm(run, request.arm).robot
        if robot.state() is None:
            raise HTTPException(409, "this run is not running: the event was not sent")
        try:
            robot.post(request.event, session=1)
        except DovetailError as error:
            raise HTTPException(409, str(error)) from error
        if request.event is Event.ACKNOWLEDGE:  # all arms that a STOP holds
            run.stop.acknowledge(source=source_name(http))
        return {"sent": True}

    @app.websocket("/ws/state")
    async def states(socket: WebSocket, arm: ArmName = "") -> None:
        """The state, at most ten times per second, when it has changed."""
        await socket.accept()
        last: dict[str, Any] | None = None
        async with _while_open(socket) as closed:
            while not closed.done():
                now = state(arm)
                if now != last:
                    await socket.send_json(now)
                    last = now
                await asyncio.wait([closed], timeout=_STATE_S)


def _add_frames(app: FastAPI, run: OpenRun) -> None:
    @app.get("/api/cameras")
    async def get_cameras(arm: ArmName = "") -> dict[str, Any]:
        """`own`: how many of them are the robot's; the views of a simulation, which are rendered, follow."""
        found = _arm(run, arm)
        return {"cameras": await found.cameras.names(), "own": found.robot.num_own_cameras}

    @app.websocket("/ws/frames")
    async def frames(socket: WebSocket, camera: str = "", arm: ArmName = "") -> None:
        """JPEGs. The next one is sent when the page has reported that it shows the last: a slow page skips images."""
        await socket.accept()
        try:
            cameras = run.arms.get(arm).cameras
        except UsageError as error:
            await socket.close(4404, str(error)[:120])
            return
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


def _add_drive(app: FastAPI, run: OpenRun) -> None:
    @app.websocket("/ws/drive")
    async def drive(socket: WebSocket, arm: ArmName = "", browser: BrowserId = "") -> None:
        """See `drive_control`. If the connection ends while it drives, the arm holds."""
        await socket.accept()
        try:
            control = run.arms.get(arm).control
        except UsageError as error:
            await socket.close(1008, str(error)[:120])
            return
        session = control.connect(user_name(socket), browser=browser)
        try:
            while True:
                refused = session.receive(await socket.receive_text())
                answer: dict[str, Any] = {"n": session.last, "session": session.id}
                await socket.send_json({**answer, "refused": refused} if refused else answer)
        except InvalidMessage as error:
            await socket.close(1008, str(error)[:120])
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass  # disconnected, or not text
        finally:
            control.disconnect(session)


def _arm(run: OpenRun, name: str) -> ConsoleArm:
    try:
        return run.arms.get(name)
    except UsageError as error:
        raise HTTPException(404, str(error)) from error


# ---- presence of the run


async def _refresh(run: OpenRun) -> None:
    """Never fails: whatever the folder contains, the console starts, and what is attached stays attached."""
    for step in (_refresh_stop, _refresh_arms):
        with contextlib.suppress(Exception):  # the disk hangs, or a file is damaged; STOP continues to work
            await step(run)


async def _refresh_stop(run: OpenRun) -> None:
    run.stop.use(await in_thread(run.stop.find, pool=REFRESH))


async def _refresh_arms(run: OpenRun) -> None:
    await in_thread(run.arms.refresh, pool=REFRESH)


async def _refresh_always(run: OpenRun) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        await _refresh(run)


async def _beat_always(run: OpenRun) -> None:
    while True:
        run.arms.beat()
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
