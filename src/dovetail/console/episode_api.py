"""Recorded episodes over HTTP: lists, details, frames, and files to download.

Ids come from the network: each must look like one before anybody asks the log for it. Cameras go by number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.details import details
from dovetail.console.downloads import Jobs
from dovetail.console.episode_handles import Desk, Downloads, Episodes
from dovetail.console.labelling import TakenError
from dovetail.console.listing import Listing, Wanted
from dovetail.console.reels import Reels, as_jpeg
from dovetail.core.errors import DovetailError, StoreError

__all__ = ["EPISODE_ID", "EpisodeApi", "EpisodeId", "answered", "check_there"]

EPISODE_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$"
_KEY = r"^[0-9a-f]{32}$"
_FOREVER = {"Cache-Control": "private, max-age=86400, immutable"}  # an episode that is there never changes
_NOW = {"Cache-Control": "no-store"}
_THUMBNAIL_PX = 160
_MAX_THUMBNAILS = 4096

EpisodeId = Annotated[str, InPath(pattern=EPISODE_ID)]
_Key = Annotated[str, InPath(pattern=_KEY)]
_Number = Annotated[int, InPath(ge=0, le=1_000_000)]

T = TypeVar("T")


async def answered(call: Callable[[], T], *, limiter: CapacityLimiter | None = None) -> T:
    """Work off the event loop; what goes wrong becomes one line and a fitting status."""
    try:
        return await to_thread.run_sync(call, limiter=limiter)
    except TakenError as error:
        raise HTTPException(409, str(error)) from error
    except StoreError as error:
        raise HTTPException(503, str(error)) from error
    except DovetailError as error:
        raise HTTPException(400, str(error)) from error


def check_there(episodes: Episodes, episode_id: str) -> None:
    if not episodes.has(episode_id):
        raise HTTPException(404, f"there is no episode {episode_id}")


class DownloadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["video", "lerobot"]
    ids: list[Annotated[str, Field(pattern=EPISODE_ID)]] = Field(min_length=1, max_length=5000)


class EpisodeApi:
    """Holds what is kept between requests: frames, thumbnails, files in the making."""

    def __init__(self, episodes: Episodes, desk: Desk, downloads: Downloads) -> None:
        self._episodes = episodes
        self._desk = desk
        self._listing = Listing(episodes, desk)
        self._reels = Reels(episodes.frames)
        self._jobs = Jobs(downloads)
        self._thumbnails: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._decoding: CapacityLimiter | None = None  # belongs to an event loop, so it is made in one

    def close(self) -> None:
        self._reels.close()
        self._jobs.close()
        self._episodes.close()

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api")

        @api.get("/episodes")
        async def listed(wanted: Annotated[Wanted, Query()], response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            return await answered(lambda: self._listing.page(wanted))

        @api.get("/episodes/{episode_id}")
        async def detailed(episode_id: EpisodeId, response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            return await answered(lambda: self._details(episode_id))

        @api.get("/episodes/{episode_id}/frames/{camera}/{block}")
        async def frames(episode_id: EpisodeId, camera: _Number, block: _Number) -> Response:
            data = await answered(lambda: self._block(episode_id, camera, block), limiter=self._limiter())
            return Response(data, media_type="application/octet-stream", headers=_FOREVER)

        @api.get("/episodes/{episode_id}/thumbnail")
        async def thumbnail(episode_id: EpisodeId) -> Response:
            data = await answered(lambda: self._thumbnail(episode_id), limiter=self._limiter())
            return Response(data, media_type="image/jpeg", headers=_FOREVER)

        @api.post("/downloads")
        async def begin(wanted: DownloadRequest) -> dict[str, str]:
            return await answered(lambda: {"key": self._begin(wanted)})

        @api.get("/downloads/{key}")
        async def told(key: _Key, response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            job = self._jobs.get(key)
            if job is None:
                raise HTTPException(404, "there is no such download: begin it again")
            return job.told()

        @api.get("/downloads/{key}/file")
        async def fetched(key: _Key) -> FileResponse:
            job = self._jobs.get(key)
            if job is None or job.state != "done":
                raise HTTPException(404, "there is no such download, or it is not ready")
            return FileResponse(job.path, filename=job.name, headers=_NOW)

        @api.delete("/downloads/{key}")
        async def dropped(key: _Key) -> dict[str, str]:
            self._jobs.drop(key)
            return {}

        return api

    def _limiter(self) -> CapacityLimiter:
        """Frames may wait for their turn to be decoded: never in the threads that the rest needs."""
        self._decoding = self._decoding or CapacityLimiter(12)
        return self._decoding

    def _details(self, episode_id: str) -> dict[str, Any]:
        check_there(self._episodes, episode_id)
        return details(self._episodes, self._desk, episode_id)

    def _camera(self, episode_id: str, number: int) -> str:
        check_there(self._episodes, episode_id)
        names = list(self._episodes.cameras(episode_id))
        if number >= len(names):
            raise HTTPException(404, f"episode {episode_id} has {len(names)} cameras")
        return names[number]

    def _block(self, episode_id: str, camera: int, block: int) -> bytes:
        return self._reels.block(episode_id, self._camera(episode_id, camera), block)

    def _thumbnail(self, episode_id: str) -> bytes:
        """How it ended, small."""
        with self._lock:
            if episode_id in self._thumbnails:
                self._thumbnails.move_to_end(episode_id)
                return self._thumbnails[episode_id]
        frame = self._episodes.last_frame(episode_id, self._camera(episode_id, 0))
        data = as_jpeg(frame, longest_px=_THUMBNAIL_PX, quality=80)
        with self._lock:
            self._thumbnails[episode_id] = data
            while len(self._thumbnails) > _MAX_THUMBNAILS:
                self._thumbnails.popitem(last=False)
        return data

    def _begin(self, wanted: DownloadRequest) -> str:
        for episode_id in wanted.ids:
            check_there(self._episodes, episode_id)
        return self._jobs.begin(wanted.kind, wanted.ids)
