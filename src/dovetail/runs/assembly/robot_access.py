"""A robot of a config without a run: for `dovetail robot`, `dovetail doctor` and benches. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from dovetail.config.load import Overrides, Source, load
from dovetail.config.model import Config
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import LooksOnly
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import Expert, Robot
from dovetail.core.errors import ConfigError, UsageError, did_you_mean
from dovetail.core.specs import TaskSpec
from dovetail.core.streams import stream
from dovetail.core.types import Observation, Verdict
from dovetail.runs.assembly.arms import arm_configs
from dovetail.runs.assembly.workcell import Workcell, build_workcell

__all__ = ["NoTask", "load_robot", "open_workcell"]


class NoTaskConfig(Config):
    """No settings."""


class NoTask:
    """No task: a robot is only looked at, or moved by a person."""

    Config: ClassVar[type[NoTaskConfig]] = NoTaskConfig

    def __init__(self, config: NoTaskConfig) -> None: ...

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="no_task", observation_keys=(), embodiments=())

    @property
    def prompt(self) -> str:
        return ""

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None: ...

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        return Verdict(outcome=None)

    def expert(self) -> Expert:
        raise UsageError("there is no task, and so no expert")


_REST = {"task": f"{__name__}:NoTask", "policy": "gaussian_mlp", "algorithm": "rlpd"}


def load_robot(sources: Sequence[Source], overrides: Overrides = (), *, arm: str | None = None) -> RunConfig:
    """The config of one arm. The files may have nothing but a `robot` section."""
    try:
        config = load(sources, overrides)
    except ConfigError as error:
        try:
            config = load([_REST, *sources], overrides)
        except ConfigError:
            raise error from None
    arms = arm_configs(config)
    if arm is None and len(arms) > 1 and config.cluster.robots:
        raise UsageError(f"the config has several arms: choose one with --arm. Valid: {', '.join(arms)}")
    if arm is not None and arm not in arms:
        raise UsageError(f"the config has no arm '{arm}'.{did_you_mean(arm, arms)}")
    return config if arm is None else arms[arm]


@contextmanager
def open_workcell(config: RunConfig, *, looks: bool = False) -> Iterator[Workcell]:
    """Robot, task and clock behind the safety filter, as in a run. A simulated robot is reset. The robot is stopped at the
    end if it was moved here, and otherwise left alone: another process may move it. `looks`: it is only observed."""
    workcell = build_workcell(task=config.task, robot=config.robot, cameras=config.cameras, safety=config.safety)
    if looks and isinstance(workcell.driver, LooksOnly):
        workcell.driver.look_only()
    try:
        if isinstance(workcell.clock, SimulatedClock):
            workcell.task.reset(workcell.robot, rng=stream(config.run.seed, "check"))
            workcell.robot.reset()
        yield workcell
    finally:
        workcell.close(stop=workcell.robot.command_times[0] > 0)
