"""A task on a real table, without a simulator: reset by motions and a person, success decided by a person or a labeler.

    task:
      type: table
      prompt: put the cube into the tray
      time_limit_s: 20
      home: {parts: {arm: [0.0, -0.8, 1.2, 0.0, 0.9, 0.0], gripper: [1.0]}, speed: 0.25}
      ask: place the cube

The control loop executes the reset (`dovetail.core.reset_steps`). It works with every robot. Simulated arms get an
empty table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Expert, Robot
from dovetail.core.errors import UsageError
from dovetail.core.reset_steps import AskPerson, MoveTo, ResetStep, Wait, check_targets
from dovetail.core.specs import RobotSpec, TaskSpec
from dovetail.core.types import Observation, Outcome, Verdict

__all__ = ["TableConfig", "TableTask", "Waypoint"]

_VERDICT = "did it succeed? Press success or failure"
_START = "Then press start"


class Waypoint(Config):
    """One motion of a reset, then a wait, then a request to a person. Each is optional."""

    parts: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Targets by action part: joint angles, a pose (x, y, z, qw, qx, qy, qz) or position in the base frame, or gripper
    values. Other parts stand still."""
    offsets: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Largest random offset of a target by part: one value per axis; for a pose x, y, z and a rotation vector."""
    speed: float = Field(default=0.25, gt=0.0, le=1.0)
    """Speed, relative to the limits of the safety filter."""
    tolerance_m: float = Field(default=0.005, gt=0.0)
    """Largest distance from the target on arrival, per axis in meters."""
    tolerance_rad: float = Field(default=0.02, gt=0.0)
    """Largest angle from the target on arrival, per axis in rad."""
    timeout_s: float = Field(default=30.0, gt=0.0)
    """Seconds after which an arm that has not arrived is a fault."""
    wait_s: float = Field(default=0.0, ge=0.0)
    """Seconds to stand still after the motion, for example while a gripper closes."""
    ask: str | None = Field(default=None, min_length=1)
    """Request to a person after the motion; the arm waits for start. Null: it does not wait."""


class TableConfig(Config):
    """A task on a table: its text, time limit and reset."""

    BASIC: ClassVar[Collection[str]] = ("prompt", "time_limit_s", "home", "ask")
    needs_verdict: ClassVar[bool] = True

    prompt: str = Field(min_length=1)
    """What to do, in words. Policies that read text receive it, and so do the labelers."""
    time_limit_s: float = Field(default=20.0, gt=0.0)
    """Seconds after which an episode is a timeout."""
    home: Waypoint | None = None
    """Start pose. Null: the arm starts where it is."""
    routine: tuple[Waypoint, ...] = ()
    """Motions after home, such as a scripted reset of the objects."""
    ask: str | None = Field(default=None, min_length=1)
    """Request to a person before each episode, such as `place the part`; the episode begins with start. Null: at once."""
    ask_verdict: bool = False
    """After a timeout, wait until a person presses success or failure."""


class TableTask:
    """See the Task contract. It never decides success; `judge` only knows the time limit."""

    Config: ClassVar[type[TableConfig]] = TableConfig
    needs_verdict: ClassVar[bool] = True

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._on_reset: Callable[[], None] = lambda: None

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="table")

    @property
    def prompt(self) -> str:
        return self._config.prompt

    @property
    def verdict_request(self) -> str:
        return _VERDICT if self._config.ask_verdict else ""

    def bind_reset(self, on_reset: Callable[[], None]) -> None:
        """Called by a simulated robot, whose frame `reset` follows."""
        self._on_reset = on_reset

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        """Moves nothing: see `reset_steps`."""
        self._on_reset()

    def reset_steps(self, robot: RobotSpec, *, rng: np.random.Generator) -> list[ResetStep]:
        steps = list(self._steps(rng))
        check_targets(robot, steps, where="task")
        return steps

    def _steps(self, rng: np.random.Generator) -> Iterator[ResetStep]:
        named = [("home", self._config.home)] if self._config.home else []
        named += [(f"routine[{number}]", waypoint) for number, waypoint in enumerate(self._config.routine)]
        for name, waypoint in named:
            assert waypoint is not None
            yield from _motion(name, waypoint, rng)
        if self._config.ask is not None:
            yield _request(self._config.ask)

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        is_over = num_steps >= round(self._config.time_limit_s * robot.spec.control_hz)
        return Verdict(outcome=Outcome.TIMEOUT if is_over else None, rewards={"success": 0.0})

    def expert(self) -> Expert:
        raise UsageError(
            "task 'table' has no expert, who would demonstrate and take over. Demonstrate by hand, for example with "
            "operator.type=browser, or set run.demos=0 and operator.type=none"
        )


def _motion(name: str, waypoint: Waypoint, rng: np.random.Generator) -> Iterator[ResetStep]:
    if waypoint.parts or waypoint.offsets:
        yield MoveTo(
            name=name,
            targets=waypoint.parts,
            offsets={
                part: tuple(rng.uniform(-1.0, 1.0, len(most)) * most) for part, most in waypoint.offsets.items()
            },
            speed=waypoint.speed,
            tolerance_m=waypoint.tolerance_m,
            tolerance_rad=waypoint.tolerance_rad,
            timeout_s=waypoint.timeout_s,
        )
    if waypoint.wait_s:
        yield Wait(duration_s=waypoint.wait_s)
    if waypoint.ask is not None:
        yield _request(waypoint.ask)


def _request(text: str) -> AskPerson:
    text = text.rstrip(". ")
    return AskPerson(text=text if "start" in text.lower() else f"{text}. {_START}")
