"""What our scripts talk to besides NiceGUI: the robot's state, its pictures, and what a person says to it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect

from dovetail.config.model import Config
from dovetail.console.handles import Handles
from dovetail.console.layout import person
from dovetail.core.types import Event

__all__ = ["register"]

_STATE_S = 0.1


class Said(Config):
    event: Event | Literal["emergency"]


def register(app: FastAPI, handles: Handles) -> None:
    @app.get("/api/state")
    def state() -> dict[str, Any]:
        return _state(handles)

    @app.post("/api/event")
    def event(said: Said, request: Request) -> dict[str, bool]:
        if handles.robot.state() is None:
            raise HTTPException(409, "the run is not running: nobody hears this")
        if said.event == "emergency":
            handles.driver.emergency_stop(person(request))
        else:
            handles.driver.event(Event(said.event))
        return {"sent": True}

    @app.websocket("/ws/state")
    async def states(socket: WebSocket) -> None:
        """The state, ten times a second, when it has changed."""
        await socket.accept()
        leaving = asyncio.create_task(_until_closed(socket))
        last: dict[str, Any] | None = None
        try:
            while not leaving.done():
                now = _state(handles)
                if now != last:
                    await socket.send_json(now)
                    last = now
                await asyncio.wait([leaving], timeout=_STATE_S)
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone while we sent
        finally:
            leaving.cancel()


def _state(handles: Handles) -> dict[str, Any]:
    state = handles.robot.state()
    return {"state": None if state is None else asdict(state)}


async def _until_closed(socket: WebSocket) -> None:
    try:
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass  # nothing is asked here
    except RuntimeError:
        pass
