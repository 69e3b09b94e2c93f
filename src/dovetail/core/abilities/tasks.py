"""Abilities of tasks and their experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.core.reset_steps import ResetStep
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation

__all__ = [
    "AsksVerdict",
    "BindsReset",
    "ChangesPrompt",
    "DrawsPrompt",
    "LimitsSteps",
    "NeedsVerdict",
    "PlansReset",
    "TakesOverPart",
]


@runtime_checkable
class LimitsSteps(Protocol):
    """A task with a maximum episode length."""

    max_steps: int


@runtime_checkable
class DrawsPrompt(Protocol):
    """A task with several prompts. The prompt is recorded before the reset, perhaps in another process, so it has random
    numbers of its own."""

    def draw_prompt(self, *, rng: np.random.Generator) -> None:
        """Choose the prompt of the next episode. Without this call, `reset` chooses it."""


@runtime_checkable
class ChangesPrompt(Protocol):
    """A task with stages. `prompt` is the prompt at the start of an episode."""

    @property
    def stage_prompt(self) -> str:
        """The prompt from now on. It is read after each `judge`; another text requests a new chunk."""


@runtime_checkable
class PlansReset(Protocol):
    """A task whose reset the control loop executes: motions through the safety filter, waits, requests to a person.

    Its `reset` moves nothing: the pose of that moment becomes the frame `reset`. It is called before each motion, too.
    """

    def reset_steps(self, robot: RobotSpec, *, rng: np.random.Generator) -> Sequence[ResetStep]:
        """The steps before an episode. Raises ConfigError for a robot that cannot execute them."""


@runtime_checkable
class BindsReset(Protocol):
    """A task for any robot, without a scene. A simulated robot gives it a function to call in `reset`."""

    def bind_reset(self, on_reset: Callable[[], None]) -> None: ...


@runtime_checkable
class AsksVerdict(Protocol):
    """A task that may ask a person after the time limit whether the episode was a success."""

    @property
    def verdict_request(self) -> str:
        """The text; empty: it does not ask."""


@runtime_checkable
class NeedsVerdict(Protocol):
    """A task that never decides success: an operator or a labeler does. Class attribute, also of its config."""

    needs_verdict: bool


@runtime_checkable
class TakesOverPart(Protocol):
    """An expert that takes over only some axes of the action, such as one arm of two. The policy keeps the others."""

    def takeover_axes(self, observation: Observation) -> Array | None:
        """Mask, bool [A], of the axes to take over now; None: all."""
