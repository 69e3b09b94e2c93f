"""Speed of the simulation on one core: bare, with its controller, and with two cameras."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dovetail.bench.rows import Row, at_least
from dovetail.robots.sim.arm import ARMS
from dovetail.robots.sim.bench import control_steps_per_s, observations_per_s, physics_steps_per_s
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig

__all__ = ["bench"]

SUBSTEPS = 50  # physics steps in a control step, as in robots.sim.bench


def bench(*, quick: bool) -> Iterator[Row]:
    seconds = 1.0 if quick else 5.0
    for arm in ARMS:
        bare = physics_steps_per_s(seconds, arm=arm)
        yield at_least(f"{arm}: bare physics", bare, "steps/s", 40_000)
        control = control_steps_per_s(seconds, arm=arm)
        physics = SUBSTEPS * control
        yield at_least(
            f"{arm}: with controller", physics, "steps/s", 25_000, baseline="bare physics", ratio=physics / bare
        )
        yield at_least(f"{arm}: control", control, "steps/s", 500)
        state_only = _state_only_observations_per_s(seconds, arm=arm)
        with_cameras = observations_per_s(seconds, arm=arm)
        yield at_least(
            f"{arm}: two 128x128 cameras",
            with_cameras,
            "obs/s",
            150,
            baseline="no cameras",
            ratio=with_cameras / state_only,
        )


def _state_only_observations_per_s(seconds: float, *, arm: str) -> float:
    robot = SimRobot(SimRobotConfig.model_validate({"arm": arm}))
    count, start_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < seconds:
        robot.observe()
        count += 1
    return count / elapsed_s
