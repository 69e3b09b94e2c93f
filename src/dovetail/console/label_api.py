"""Labelling over HTTP: the queue, whose episode is whose, and what people say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.episode_api import EPISODE_ID, EpisodeId, answered, check_there
from dovetail.console.episode_handles import Episodes, Marked, Waits
from dovetail.console.labelling import Labelling
from dovetail.console.layout import person

__all__ = ["label_router"]

_SHOWN = 200  # of the queue, on a page
_MAX_HELD = 8  # by one page: the one before a person, and some that the browser fetches ahead

_Id = Annotated[str, Field(pattern=EPISODE_ID)]
_Page = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    page: _Page


class _Claim(_Body):
    count: int = Field(default=3, ge=1, le=_MAX_HELD)
    skip: list[_Id] = Field(default=[], max_length=5000)


class _Some(_Body):
    ids: list[_Id] | None = Field(default=None, max_length=_MAX_HELD)


class _Mark(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    first: int = Field(ge=0)
    last: int = Field(ge=0)
    reward: float = Field(ge=-1e6, le=1e6)


class _Say(_Body):
    verdict: Literal["success", "failure", "discard"]
    marks: list[_Mark] = Field(default=[], max_length=200)
    queued: bool = True


def label_router(labelling: Labelling, episodes: Episodes) -> APIRouter:
    api = APIRouter(prefix="/api/label")

    @api.get("/queue")
    async def queue(page: str, response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        items = await answered(lambda: labelling.queue(page))
        return {"total": len(items), "items": [{**_told(item), "whose": whose} for item, whose in items[:_SHOWN]]}

    @api.post("/claim")
    async def claim(body: _Claim) -> dict[str, Any]:
        items = await answered(lambda: labelling.claim(body.page, count=body.count, skip=set(body.skip)))
        return {"items": [_told(item) for item in items]}

    @api.post("/renew")
    async def renew(body: _Some) -> dict[str, Any]:
        return {"held": await answered(lambda: labelling.renew(body.page, body.ids or []))}

    @api.post("/release")
    async def release(body: _Some) -> dict[str, Any]:
        await answered(lambda: labelling.release(body.page, body.ids))
        return {}

    @api.post("/episodes/{episode_id}/take")
    async def take(episode_id: EpisodeId, body: _Body) -> dict[str, Any]:
        await answered(lambda: check_there(episodes, episode_id))
        await answered(lambda: labelling.take(body.page, episode_id))
        return {}

    @api.post("/episodes/{episode_id}/say")
    async def say(episode_id: EpisodeId, body: _Say, request: Request) -> dict[str, Any]:
        await answered(lambda: check_there(episodes, episode_id))
        marks = [Marked(first=mark.first, last=mark.last, reward=mark.reward) for mark in body.marks]
        by = person(request)
        await answered(
            lambda: labelling.say(body.page, episode_id, body.verdict, marks, by=by, queued=body.queued)
        )
        return {}

    @api.post("/episodes/{episode_id}/unsay")
    async def unsay(episode_id: EpisodeId, body: _Body, request: Request) -> dict[str, Any]:
        await answered(lambda: check_there(episodes, episode_id))
        by = person(request)
        await answered(lambda: labelling.unsay(body.page, episode_id, by=by))
        return {}

    return api


def _told(item: Waits) -> dict[str, Any]:
    return {
        "id": item.episode_id,
        "reasons": list(item.reasons),
        "detail": item.detail,
        "since_unix_s": item.since_unix_ns / 1e9,
    }
