"""Endpoints of the page Label: the queue, claims, labels and their retraction."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.episode_api import EPISODE_ID, EpisodeId, check_exists
from dovetail.console.labeling_queue import LabelingQueue
from dovetail.console.layout import user_name
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.console.threads import in_thread
from dovetail.labels.human import Mark
from dovetail.labels.queue import Waiting

__all__ = ["label_router"]

_MAX_SHOWN = 200  # of the queue, on a page
_MAX_CLAIMED = 8  # per page: the one on screen, and some that the browser loads ahead

_Id = Annotated[str, Field(pattern=EPISODE_ID)]
_Page = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    page: _Page


class _ClaimRequest(_Body):
    count: int = Field(default=3, ge=1, le=_MAX_CLAIMED)
    skip: list[_Id] = Field(default=[], max_length=5000)


class _EpisodesRequest(_Body):
    ids: list[_Id] | None = Field(default=None, max_length=_MAX_CLAIMED)


class _Mark(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    first: int = Field(ge=0)
    last: int = Field(ge=0)
    reward: float = Field(ge=-1e6, le=1e6)


class _LabelRequest(_Body):
    verdict: Literal["success", "failure", "discard"]
    marks: list[_Mark] = Field(default=[], max_length=200)
    queued: bool = True


def label_router(queue: LabelingQueue, episodes: RecordedEpisodes) -> APIRouter:
    api = APIRouter(prefix="/api/label")

    @api.get("/queue")
    async def get_queue(page: str, response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        items = await in_thread(lambda: queue.items(page))
        return {
            "total": len(items),
            "items": [{**_row(item), "owner": owner} for item, owner in items[:_MAX_SHOWN]],
        }

    @api.post("/claim")
    async def claim(body: _ClaimRequest) -> dict[str, Any]:
        items = await in_thread(lambda: queue.claim(body.page, count=body.count, skip=set(body.skip)))
        return {"items": [_row(item) for item in items]}

    @api.post("/renew")
    async def renew(body: _EpisodesRequest) -> dict[str, Any]:
        return {"claimed": await in_thread(lambda: queue.renew(body.page, body.ids or []))}

    @api.post("/release")
    async def release(body: _EpisodesRequest) -> dict[str, Any]:
        await in_thread(lambda: queue.release(body.page, body.ids))
        return {}

    @api.post("/episodes/{episode_id}/claim")
    async def claim_one(episode_id: EpisodeId, body: _Body) -> dict[str, Any]:
        await in_thread(lambda: check_exists(episodes, episode_id))
        await in_thread(lambda: queue.claim_one(body.page, episode_id))
        return {}

    @api.post("/episodes/{episode_id}/label")
    async def label(episode_id: EpisodeId, body: _LabelRequest, request: Request) -> dict[str, Any]:
        await in_thread(lambda: check_exists(episodes, episode_id))
        marks = [Mark(first=mark.first, last=mark.last, reward=mark.reward) for mark in body.marks]
        by = user_name(request)
        await in_thread(
            lambda: queue.label(body.page, episode_id, body.verdict, marks, by=by, queued=body.queued),
            time_limit_s=None,  # it is written or refused; the page must know which
        )
        return {}

    @api.post("/episodes/{episode_id}/retract")
    async def retract(episode_id: EpisodeId, body: _Body, request: Request) -> dict[str, Any]:
        await in_thread(lambda: check_exists(episodes, episode_id))
        by = user_name(request)
        await in_thread(lambda: queue.retract(body.page, episode_id, by=by), time_limit_s=None)
        return {}

    return api


def _row(item: Waiting) -> dict[str, Any]:
    opinions = [
        f"{one.labeler}: {'success' if one.success else 'failure'} {one.confidence:.0%}" for one in item.opinions
    ]
    return {
        "id": item.episode_id,
        "reasons": [reason.value for reason in item.reasons],
        "detail": "; ".join([*opinions, *([item.note] if item.note else [])]),
        "since_unix_s": item.since_unix_ns / 1e9,
    }
