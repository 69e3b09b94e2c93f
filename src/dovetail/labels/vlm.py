"""Rewards by a vision-language model: some frames of an episode and the task in words go to a server that speaks the
OpenAI chat API, or to a model in this process; whether it was done, and how far it had come in each frame, come back
as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from dovetail.core.disk import dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import LabelError, StoreError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels, Outcome
from dovetail.labels._vlm_answers import Answer, read_answer
from dovetail.labels._chat_client import ChatClient, ServerConfig
from dovetail.labels._vlm_prompt import SYSTEM, find_cameras, form, frame_rows, question
from dovetail.labels._rewards import (
    Stage,
    interpolate_progress,
    end_reward,
    progress_rewards,
    check_labelable,
    check_stages,
    discounts,
    stages,
)

__all__ = ["VLMConfig", "VLMLabeler"]


class VLMConfig(ServerConfig):
    BASIC: ClassVar[Collection[str]] = ("cameras",)

    model_folder: Path | None = None
    """A model of transformers on this machine, with safetensors; it answers in this process, and no server is asked."""
    device: str = Field(default="auto", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Where that model computes; auto: on a GPU where there is one."""
    cameras: tuple[str, ...] = ()
    """Whose pictures are sent; none named: all of the robot's."""
    num_frames: int = Field(default=8, ge=1, le=64)
    """Moments that are select_observations, the first and the last among them."""
    max_side_px: int = Field(default=256, ge=16)
    """Larger pictures are made smaller."""
    reward: Literal["success", "progress"] = "success"
    """What steps earn: success at the end, or what each added to the progress."""
    stages: tuple[Stage, ...] = ()
    """What the progress must reach on the way, and what that earns beside the reward above."""


class _Model(Protocol):
    """Who is asked: a server, or a model in this process."""

    @property
    def model(self) -> str: ...

    @property
    def num_tries(self) -> int: ...

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


class VLMLabeler:
    """See the Labeler contract. Raises LabelError while there is no usable answer: then the episode waits.

    Answers are kept in `folder` by what was asked, so that nothing is asked twice.
    """

    Config: ClassVar[type[VLMConfig]] = VLMConfig

    def __init__(self, config: VLMConfig | None = None, *, folder: Path | None = None) -> None:
        self._config = config or VLMConfig()
        self._folder = folder
        self._asked = _model(self._config)
        self._ignore_cache = False

    @property
    def max_concurrent(self) -> int:
        """So many episodes may be labelled at once."""
        return 1 if self._config.model_folder else self._config.max_concurrent

    @property
    def version(self) -> str:
        """Another model, or another view of the episode, may say something else. Asks the server for its model's name,
        where the config leaves it open."""
        config = self._config
        seen: tuple[Any, ...] = (config.reward, config.num_frames, config.cameras, config.max_side_px)
        seen += tuple(stage.model_dump_json() for stage in config.stages)
        return f"2-{_digest(self._asked.model, seen)[:8]}"

    @property
    def rewards_at_the_end(self) -> bool:
        """Nothing is earned before the last step."""
        return self._config.reward == "success" and not self._config.stages

    def check(self, robot: RobotSpec) -> None:
        """Refuse, before anything moves, a robot without the cameras that it looks through."""
        find_cameras(robot, self._config.cameras)
        check_stages(self._config.stages, ("completion",), who="labeler 'vlm'")

    @property
    def _asks(self) -> str:
        """Stages are told by the progress too."""
        return "progress" if self._config.stages else self._config.reward

    def ask_again(self) -> None:
        """From now on ask also what was asked before; the newer answer is kept."""
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
        num_progress = len(rows) if self._asks == "progress" else 0
        token = _digest(self._asked.model, self._asks, asked)[:16]
        kept = self._kept(token)
        if kept is not None:
            return read_answer(kept, token=token, num_progress=num_progress)
        content = [*asked, {"type": "text", "text": form(token, num_progress=num_progress)}]
        why = LabelError("")
        for _ in range(self._asked.num_tries):  # nonsense may be better the next time, as silence may
            said = self._asked.ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}])
            try:
                answer = read_answer(said, token=token, num_progress=num_progress)
            except LabelError as error:
                why = error
                continue
            self._keep(token, said, episode_id=episode.id)
            return answer
        raise why

    def _kept(self, token: str) -> str | None:
        """What was said to the same question; a file that is not what was written is as none."""
        if self._folder is None or self._ignore_cache:
            return None
        path = self._folder / f"{token}.json"
        try:
            return str(load_json(read_file(path), name=str(path))["said"])
        except (StoreError, KeyError):
            return None

    def _keep(self, token: str, said: str, *, episode_id: str) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / f"{token}.json", dump_json({"episode": episode_id, "said": said}))


def _model(config: VLMConfig) -> _Model:
    if config.model_folder is None:
        return ChatClient(config)
    from dovetail.labels.learned.local_vlm import LocalVLM  # torch, for those who want it

    return LocalVLM(config.model_folder, max_tokens=config.max_tokens, device=config.device)


def _digest(*things: Any) -> str:
    return hashlib.sha256(json.dumps(things).encode()).hexdigest()
