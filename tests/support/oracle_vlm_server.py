"""A fake vision-language model server: it answers with the simulator's outcome, except for a share of mistakes.

It identifies the episode by its last image, which it looks up among the run's recorded episodes. For an unknown image it
answers that it does not know.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dovetail.core.types import Array, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.labels._vlm_prompt import _jpeg
from support.chat_server import ChatServer, Question

__all__ = ["oracle_vlm_server"]


def oracle_vlm_server(
    run: Path, *, camera: str = "front", mistakes: float = 0.1, max_side_px: int = 256
) -> ChatServer:
    """`with oracle_vlm_server(runs / "a").running() as server:`; the run may start later and continue while it answers."""
    return ChatServer(_Judge(run / "episodes", camera, mistakes, max_side_px))


class _Judge:
    def __init__(self, episodes: Path, camera: str, mistakes: float, max_side_px: int) -> None:
        self._episodes = episodes
        self._camera = camera
        self._mistakes = mistakes
        self._max_side_px = max_side_px
        self._truth: dict[str, bool] = {}  # by digest of the last image
        self._known: set[str] = set()
        self.num_wrong = 0

    def __call__(self, question: Question) -> dict[str, Any] | str:
        digest = _fingerprint(question.pictures[-1])
        if digest not in self._truth:
            self._read_new()
        if digest not in self._truth:
            return "I do not know."
        # depends on the question, so the same question always gets the same answer
        wrong = int(question.token, 16) / 16**16 < self._mistakes
        self.num_wrong += wrong
        return {
            "id": question.token,
            "success": self._truth[digest] != wrong,
            "confidence": 0.9,
            "reason": "as I see it",
        }

    def _read_new(self) -> None:
        log = EpisodeLog(self._episodes)
        for episode_id in log.ids():
            if episode_id in self._known:
                continue
            self._known.add(episode_id)
            *_, last = log.frames(episode_id, self._camera)
            sent = np.array(Image.open(io.BytesIO(_jpeg(last, self._max_side_px))))
            self._truth[_fingerprint(sent)] = log.manifest(episode_id).outcome is Outcome.SUCCESS


def _fingerprint(picture: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(picture).tobytes()).hexdigest()
