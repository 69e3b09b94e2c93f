"""Push the red or the blue cube onto a mark. Both lie on the table in every episode; only the prompt says which one.

Start and state contain both cubes in the same way, so a policy that does not read the prompt pushes the wrong cube half of
the time. That ends the episode as a failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import ConfigError
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.world import World
from dovetail.tasks._cubes import about_z, table_camera
from dovetail.tasks.base import Vector
from dovetail.tasks.push_cube import CUBE_STATE, MARK_XML, PushCube, cube_xml
from dovetail.tasks.settings import PushByPromptConfig

__all__ = ["PushByPrompt", "PushByPromptConfig"]

_RGB = {"red": "0.80 0.22 0.20", "blue": "0.20 0.36 0.80"}
_CUBE_Z = 0.02  # m: a cube's center on the table
_REGION_M = 0.22  # edge of the square for cubes and mark
_CORRIDOR_M = 0.075  # free space beside the way of each cube, for the other cube and the fingers
_RUN_UP_M = 0.06  # the fingers come down this far behind a cube


class PushByPrompt(PushCube):
    Config: ClassVar = PushByPromptConfig
    name: ClassVar[str] = "push_by_prompt"
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"{color}_{name}" for color in _RGB for name in CUBE_STATE),
        *(f"tcp_turn_{axis}" for axis in "xyz"),
    )

    def __init__(self, config: PushByPromptConfig) -> None:
        super().__init__(config)
        self.settings = config
        self._pushed: str = config.cubes[0]
        self._is_drawn = False  # for the next episode

    @property
    def prompt(self) -> str:  # type: ignore[override]
        named = self._other if self.settings.swap_prompt else self._pushed
        return f"push the {named} cube to the mark"

    def xml(self, arm: Arm) -> str:
        cubes = "".join(cube_xml(color, rgb) for color, rgb in _RGB.items())
        return f"<mujoco><worldbody>{table_camera(arm)}{MARK_XML}{cubes}</worldbody></mujoco>"

    def place(self, world: World, rng: np.random.Generator) -> None:
        mark, cubes = self._draw(rng, self._center(world.arm))
        world.model.body_pos[world.body_id("mark")] = (*mark, 0.0)
        for color, cube in zip(_RGB, cubes, strict=True):
            world.set_free_body(color, (*cube, _CUBE_Z), about_z(rng.uniform(-math.pi, math.pi)))
        if not self._is_drawn:
            self.draw_prompt(rng=rng)
        self._is_drawn = False
        self._place_arm(world, rng)
        world.forward()
        self._start_distance, self._start_reach = self._distance(world), self._reach(world)

    def draw_prompt(self, *, rng: np.random.Generator) -> None:
        self._pushed, self._is_drawn = self.settings.cubes[int(rng.integers(len(self.settings.cubes)))], True

    def _draw(self, rng: np.random.Generator, center: Vector) -> tuple[Vector, tuple[Vector, Vector]]:
        """The mark and both cubes. No cube lies on the way of the other."""
        shortest, longest = self.config.push_m
        for _ in range(10_000):
            mark = center + rng.uniform(-0.5, 0.5, 2) * _REGION_M
            bearings, distances = rng.uniform(-math.pi, math.pi, 2), rng.uniform(shortest, longest, 2)
            red, blue = mark + distances[:, None] * np.stack((np.cos(bearings), np.sin(bearings)), axis=1)
            inside = (np.abs(np.stack((red, blue)) - center) <= 0.5 * _REGION_M).all()
            if inside and min(_from_way(red, blue, mark), _from_way(blue, red, mark)) >= _CORRIDOR_M:
                return mark, (red, blue)
        raise ConfigError(
            f"no two cubes fit {shortest} to {longest} m from a mark within {_REGION_M} m: change task.push_m"
        )

    def failed(self, world: World) -> bool:
        """Whether a cube was lost, or the other cube is on the mark."""
        is_lost = any(self._is_lost(self._cube(world, color), world) for color in _RGB)
        return is_lost or self._is_other_on_mark(world)

    def read_state(self, world: World) -> NDArray[np.float32]:
        cubes = (self._cube_state(world, color) for color in _RGB)
        return np.concatenate((*cubes, self._turn(world))).astype(np.float32)

    def metrics(self, world: World) -> Mapping[str, float]:
        return {**super().metrics(world), "other_cube_on_mark": float(self._is_other_on_mark(world))}

    @property
    def _other(self) -> str:
        return "blue" if self._pushed == "red" else "red"

    def _is_other_on_mark(self, world: World) -> bool:
        away = self._mark(world) - self._cube(world, self._other)[:2]
        return float(np.linalg.norm(away)) <= self.config.tolerance_m


def _from_way(point: Vector, cube: Vector, mark: Vector) -> float:
    """Distance of a point from the way of a cube to the mark, from where the fingers come down."""
    ahead = (mark - cube) / np.linalg.norm(mark - cube)
    start = cube - _RUN_UP_M * ahead
    along = float(np.clip((point - start) @ ahead, 0.0, np.linalg.norm(mark - start)))
    return float(np.linalg.norm(point - start - along * ahead))
