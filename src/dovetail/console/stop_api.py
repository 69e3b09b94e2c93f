"""Endpoints of STOP and its acknowledgement. A STOP depends on nothing else: no state is computed and no file is read."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from starlette.requests import HTTPConnection
from starlette.types import Message

from dovetail.config.model import Config
from dovetail.console.emergency import ConsoleStop, Press
from dovetail.console.layout import user_name
from dovetail.console.run_files import OpenRun
from dovetail.core.errors import UsageError, shown

__all__ = ["add_stop", "press_stop", "source_name"]

_MAX_ID = 64


class AcknowledgeRequest(Config):
    robot: str


def add_stop(app: FastAPI, run: OpenRun) -> None:
    @app.post("/api/stop")
    async def post_stop(http: Request, press: str = "") -> dict[str, Any]:
        """Stop all arms, and say which of them have confirmed it within a second."""
        pressed = press_stop(run.stop, press, http)
        return _confirmation(press, await run.stop.confirmed(pressed))

    @app.post("/api/acknowledge")
    async def post_acknowledge(request: AcknowledgeRequest, http: Request) -> dict[str, bool]:
        """Acknowledge one of several arms by its name; the event `acknowledge` releases all arms."""
        found = run.arms.get().robot.state()
        rows = found.facts.get("roles", ()) if found is not None else ()
        stopped = {row["name"] for row in rows if row.get("problem")} | run.stop.stopped_arms()
        stopped |= {row["name"] for row in run.arms.rows() if row["control"] == "fault"}
        if request.robot not in stopped:
            raise HTTPException(409, f"{shown(request.robot)} has not stopped")
        if not run.stop.acknowledge(source=source_name(http), arm=request.robot):
            raise HTTPException(409, "this run is not running: nothing was acknowledged")
        return {"sent": True}

    @app.websocket("/ws/stop")
    async def stop_socket(socket: WebSocket) -> None:
        """Each message is a STOP; its text is the id of the press. Open on every page: a STOP needs no new connection."""
        await socket.accept()
        confirming: set[asyncio.Task[None]] = set()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # disconnected
            while True:
                press_id = _text(await socket.receive())
                try:
                    pressed = run.stop.press(press_id, source=source_name(socket))
                except UsageError as error:
                    await socket.send_json({"press": press_id, "sent": False, "detail": str(error)})
                    continue
                await socket.send_json({"press": press_id, "sent": True})
                task = asyncio.create_task(_send_confirmation(socket, run.stop, press_id, pressed))
                confirming.add(task)
                task.add_done_callback(confirming.discard)


def press_stop(stop: ConsoleStop, press_id: str, connection: Request) -> Press:
    try:
        return stop.press(press_id[:_MAX_ID], source=source_name(connection))
    except UsageError as error:
        raise HTTPException(409, str(error)) from error


def source_name(connection: HTTPConnection) -> str:
    return f"console, {user_name(connection)}"


def _text(message: Message) -> str:
    """The text of a websocket message. Any message is a STOP."""
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
