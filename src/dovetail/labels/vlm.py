"""Labels by a vision-language model.

It receives the task as text and some frames of the episode, on a server with the OpenAI chat API or in this process. It
answers in JSON with success and, on request, the progress at each frame.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from dovetail.core.disk import MAX_JSON_BYTES, dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import LabelError, StoreError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels, Outcome
from dovetail.labels._chat_client import ChatClient, ServerConfig
from dovetail.labels._rewards import (
    Stage,
    check_labelable,
    check_stages,
    discounts,
    end_reward,
    interpolate_progress,
    progress_rewards,
    stages,
)
from dovetail.labels._vlm_prompt import SYSTEM, Answer, find_cameras, form, frame_rows, question, read_answer

__all__ = ["VLMConfig", "VLMLabeler"]


class VLMConfig(ServerConfig):
    BASIC: ClassVar[Collection[str]] = ("cameras",)

    model_folder: Path | None = None
    """Folder of a transformers model with safetensors. It runs in this process instead of a server."""
    device: str = Field(default="auto", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Device of the model in model_folder; auto: a GPU if there is one."""
    cameras: tuple[str, ...] = ()
    """Cameras whose images are sent; empty: all cameras of the robot."""
    num_frames: int = Field(default=8, ge=1, le=64)
    """Number of frames per camera, including the first and the last."""
    max_side_px: int = Field(default=256, ge=16)
    """Larger images are scaled down to this size, in pixels."""
    reward: Literal["success", "progress"] = "success"
    """Reward of steps: success at the end, or the progress that each step added."""
    stages: tuple[Stage, ...] = ()
    """Intermediate goals by the progress, with additional rewards."""


class _Model(Protocol):
    """A chat server, or a model in this process."""

    @property
    def model(self) -> str: ...

    @property
    def num_tries(self) -> int: ...

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


class VLMLabeler:
    """Implements Labeler. Raises LabelError without a valid answer: then the episode waits.

    Answers are cached in `folder` by question.
    """

    Config: ClassVar[type[VLMConfig]] = VLMConfig

    def __init__(self, config: VLMConfig | None = None, *, folder: Path | None = None) -> None:
        self._config = config or VLMConfig()
        self._folder = folder
        self._model = _make_model(self._config)
        self._ignore_cache = False

    @property
    def max_concurrent(self) -> int:
        """Maximum number of episodes to label concurrently."""
        return 1 if self._config.model_folder else self._config.max_concurrent

    @property
    def version(self) -> str:
        """Depends on the model and on what it is shown. Asks the server for its model if the config names none."""
        config = self._config
        seen: tuple[Any, ...] = (config.reward, config.num_frames, config.cameras, config.max_side_px)
        seen += tuple(stage.model_dump_json() for stage in config.stages)
        return f"2-{_digest(self._model.model, seen)[:8]}"

    @property
    def rewards_at_the_end(self) -> bool:
        """Whether all rewards before the last step are zero."""
        return self._config.reward == "success" and not self._config.stages

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError if the robot lacks a camera."""
        find_cameras(robot, self._config.cameras)
        check_stages(self._config.stages, ("completion",), who="labeler 'vlm'")

    @property
    def _question_type(self) -> str:
        """Stages need the progress too."""
        return "progress" if self._config.stages else self._config.reward

    def ask_again(self) -> None:
        """Ignore cached answers from now on, and replace them."""
        self._ignore_cache = True

    def label(self, episode: Episode) -> Labels:
        check_labelable(episode)
        rows = frame_rows(len(episode) + 1, self._config.num_frames)
        answer = self._answer(episode, rows)
        if self._config.reward == "progress":
            rewards = progress_rewards(len(episode), rows, answer.progress)
        else:
            rewards = end_reward(len(episode), float(answer.success))
        if self._config.stages:
            completion = interpolate_progress(len(episode), rows, answer.progress)
            rewards = rewards + stages(len(episode), self._config.stages, {"completion": completion})
        return Labels(
            episode_id=episode.id,
            rewards=rewards,
            discounts=discounts(episode, Outcome.SUCCESS if answer.success else Outcome.FAILURE),
            success=answer.success,
            confidence=answer.confidence,
            labeler="vlm",
            version=self.version,
            why=answer.reason,
        )

    def _answer(self, episode: Episode, rows: list[int]) -> Answer:
        config = self._config
        asked = question(episode, rows, cameras=config.cameras, max_side_px=config.max_side_px)
        num_progress = len(rows) if self._question_type == "progress" else 0
        token = _digest(self._model.model, self._question_type, asked)[:16]
        cached = self._cached(token)
        if cached is not None:
            return read_answer(cached, token=token, num_progress=num_progress)
        content = [*asked, {"type": "text", "text": form(token, num_progress=num_progress)}]
        last_error = LabelError("")
        for _ in range(self._model.num_tries):  # the next answer may be valid
            text = self._model.ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}])
            try:
                answer = read_answer(text, token=token, num_progress=num_progress)
            except LabelError as error:
                last_error = error
                continue
            self._cache(token, text, episode_id=episode.id)
            return answer
        raise last_error

    def _cached(self, token: str) -> str | None:
        """Return the cached answer to the question; a damaged file counts as none."""
        if self._folder is None or self._ignore_cache:
            return None
        path = self._folder / f"{token}.json"
        try:
            return str(load_json(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path))["said"])
        except (StoreError, KeyError):
            return None

    def _cache(self, token: str, text: str, *, episode_id: str) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / f"{token}.json", dump_json({"episode": episode_id, "said": text}))


def _make_model(config: VLMConfig) -> _Model:
    if config.model_folder is None:
        return ChatClient(config)
    from dovetail.labels.learned.local_vlm import LocalVLM  # imports torch

    return LocalVLM(config.model_folder, max_tokens=config.max_tokens, device=config.device)


def _digest(*things: Any) -> str:
    return hashlib.sha256(json.dumps(things).encode()).hexdigest()
