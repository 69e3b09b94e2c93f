"""Endpoints for recorded episodes: lists, details, frames and downloads.

Ids come from the network: their format is checked before the log is asked. Cameras have numbers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.downloads import Downloads
from dovetail.console.episode_details import details
from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.episode_list import EpisodeList, EpisodeQuery
from dovetail.console.frame_cache import FrameCache, to_jpeg
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.console.threads import DECODING, in_thread

__all__ = ["EPISODE_ID", "EpisodeApi", "EpisodeId", "check_exists"]

EPISODE_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$"
_KEY = r"^[0-9a-f]{32}$"
_FOREVER = {"Cache-Control": "private, max-age=86400, immutable"}  # a recorded episode never changes
_NOW = {"Cache-Control": "no-store"}
_THUMBNAIL_PX = 160
_MAX_THUMBNAILS = 4096

EpisodeId = Annotated[str, InPath(pattern=EPISODE_ID)]
_Key = Annotated[str, InPath(pattern=_KEY)]
_Number = Annotated[int, InPath(ge=0, le=1_000_000)]


def check_exists(episodes: RecordedEpisodes, episode_id: str) -> None:
    if not episodes.has(episode_id):
        raise HTTPException(404, f"there is no episode {episode_id}")


class DownloadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["video", "lerobot"]
    ids: list[Annotated[str, Field(pattern=EPISODE_ID)]] = Field(min_length=1, max_length=5000)


class EpisodeApi:
    """Keeps frames, thumbnails and downloads between requests."""

    def __init__(self, episodes: RecordedEpisodes, labels: EpisodeLabels) -> None:
        self._episodes = episodes
        self._labels = labels
        self._list = EpisodeList(episodes, labels)
        self._frames = FrameCache(episodes.frames)
        self._downloads = Downloads(episodes)
        self._thumbnails: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        self._frames.close()
        self._downloads.close()
        self._episodes.close()

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api")

        @api.get("/episodes")
        async def get_list(query: Annotated[EpisodeQuery, Query()], response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            return await in_thread(lambda: self._list.page(query))

        @api.get("/episodes/{episode_id}")
        async def get_details(episode_id: EpisodeId, response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            return await in_thread(lambda: self._details(episode_id))

        @api.get("/episodes/{episode_id}/frames/{camera}/{block}")
        async def get_frames(episode_id: EpisodeId, camera: _Number, block: _Number) -> Response:
            data = await in_thread(lambda: self._block(episode_id, camera, block), pool=DECODING)
            return Response(data, media_type="application/octet-stream", headers=_FOREVER)

        @api.get("/episodes/{episode_id}/thumbnail")
        async def get_thumbnail(episode_id: EpisodeId) -> Response:
            data = await in_thread(lambda: self._thumbnail(episode_id), pool=DECODING)
            return Response(data, media_type="image/jpeg", headers=_FOREVER)

        @api.post("/downloads")
        async def start_download(request: DownloadRequest) -> dict[str, str]:
            return await in_thread(lambda: {"key": self._start_download(request)})

        @api.get("/downloads/{key}")
        async def get_download(key: _Key, response: Response) -> dict[str, Any]:
            response.headers.update(_NOW)
            job = await in_thread(lambda: self._downloads.get(key))
            if job is None:
                raise HTTPException(404, "there is no such download: start it again")
            return job.status()

        @api.get("/downloads/{key}/file")
        async def get_file(key: _Key) -> FileResponse:
            job = await in_thread(lambda: self._downloads.get(key))
            if job is None or job.state != "done":
                raise HTTPException(404, "there is no such download, or it is not ready")
            return FileResponse(job.path, filename=job.name, headers=_NOW)

        @api.delete("/downloads/{key}")
        async def cancel_download(key: _Key) -> dict[str, str]:
            await in_thread(lambda: self._downloads.cancel(key))
            return {}

        return api

    def _details(self, episode_id: str) -> dict[str, Any]:
        check_exists(self._episodes, episode_id)
        return details(self._episodes, self._labels, episode_id)

    def _camera(self, episode_id: str, number: int) -> str:
        check_exists(self._episodes, episode_id)
        names = list(self._episodes.cameras(episode_id))
        if number >= len(names):
            raise HTTPException(404, f"episode {episode_id} has {len(names)} cameras")
        return names[number]

    def _block(self, episode_id: str, camera: int, block: int) -> bytes:
        return self._frames.block(episode_id, self._camera(episode_id, camera), block)

    def _thumbnail(self, episode_id: str) -> bytes:
        """The last frame, small."""
        with self._lock:
            if episode_id in self._thumbnails:
                self._thumbnails.move_to_end(episode_id)
                return self._thumbnails[episode_id]
        frame = self._episodes.last_frame(episode_id, self._camera(episode_id, 0))
        data = to_jpeg(frame, longest_px=_THUMBNAIL_PX, quality=80)
        with self._lock:
            self._thumbnails[episode_id] = data
            while len(self._thumbnails) > _MAX_THUMBNAILS:
                self._thumbnails.popitem(last=False)
        return data

    def _start_download(self, request: DownloadRequest) -> str:
        for episode_id in request.ids:
            check_exists(self._episodes, episode_id)
        return self._downloads.start(request.kind, request.ids)
