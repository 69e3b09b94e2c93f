"""The grippers behind the server, with the habits of each original."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dovetail.robots.sim.world import World

__all__ = ["EmulatedGripper", "FrankaHand", "Robotiq", "make_gripper"]

_SLOW_M_S = 0.02  # of `/close_gripper_slow`


class EmulatedGripper(ABC):
    """Sets the target of the fingers. `tick` is called once per cycle of 1 ms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._max_m = world.arm.max_opening_m
        self._slow_target_m: float | None = None

    @abstractmethod
    def position(self) -> float:
        """`gripper_pos` of the state."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def close_slowly(self) -> None:
        self._slow_target_m = 0.0

    @abstractmethod
    def move(self, value: float) -> None:
        """`/move_gripper`: 0 to 255."""

    @abstractmethod
    def activate(self) -> None: ...

    @abstractmethod
    def reset(self) -> None: ...

    def placed(self) -> None:
        """The scene was reset: take over the command that it left."""
        self._slow_target_m = None

    def tick(self) -> None:
        if self._slow_target_m is not None:
            here = self._target_m
            self._set(max(here - 1e-3 * _SLOW_M_S, self._slow_target_m), keep_slow=True)

    @property
    def _target_m(self) -> float:
        return 2.0 * float(self._world.data.ctrl[self._world.gripper_ctrl])

    def _set(self, opening_m: float, *, keep_slow: bool = False) -> None:
        if not keep_slow:
            self._slow_target_m = None
        self._world.data.ctrl[self._world.gripper_ctrl] = 0.5 * min(max(opening_m, 0.0), self._max_m)


class Robotiq(EmulatedGripper):
    """Raw 0 is open and 255 closed. SERL reports raw, HIL-SERL 1 - raw/255. HIL-SERL opens to 175 only."""

    def __init__(self, world: World, *, hil: bool) -> None:
        super().__init__(world)
        self._hil = hil
        self._is_active = True

    def position(self) -> float:
        raw = 255.0 * (1.0 - self._world.gripper_opening() / self._max_m)
        raw = float(round(min(max(raw, 0.0), 255.0)))
        return 1.0 - raw / 255.0 if self._hil else raw

    def open(self) -> None:
        self._move_raw(175.0 if self._hil else 0.0)

    def close(self) -> None:
        self._move_raw(255.0)

    def close_slowly(self) -> None:
        if self._is_active:
            super().close_slowly()

    def move(self, value: float) -> None:
        self._move_raw(min(max(value, 0.0), 255.0))

    def activate(self) -> None:
        self._is_active = True

    def reset(self) -> None:
        """A Robotiq gripper that was reset ignores commands until it is activated (inferred)."""
        self._is_active = False

    def _move_raw(self, raw: float) -> None:
        if self._is_active:
            self._set(self._max_m * (1.0 - raw / 255.0))


class FrankaHand(EmulatedGripper):
    """SERL reports the opening in meters, HIL-SERL relative to 0.08 m. HIL-SERL ignores a command that it
    remembers as done."""

    def __init__(self, world: World, *, hil: bool) -> None:
        super().__init__(world)
        self._hil = hil
        self._is_open: bool | None = None  # as HIL-SERL's server remembers it

    def position(self) -> float:
        opening_m = max(self._world.gripper_opening(), 0.0)
        return opening_m / 0.08 if self._hil else opening_m

    def open(self) -> None:
        self._command(is_open=True)

    def close(self) -> None:
        self._command(is_open=False)

    def close_slowly(self) -> None:
        if not (self._hil and self._is_open is False):
            self._is_open = False
            super().close_slowly()

    def move(self, value: float) -> None:
        self._set(min(max(value, 0.0), 255.0) / 2550.0)

    def activate(self) -> None:
        """No effect."""

    def reset(self) -> None:
        """No effect."""

    def placed(self) -> None:
        super().placed()
        self._is_open = None

    def _command(self, *, is_open: bool) -> None:
        if self._hil and self._is_open is is_open:
            return
        self._is_open = is_open
        self._set(self._max_m if is_open else 0.0)


def make_gripper(kind: str, world: World, *, hil: bool) -> EmulatedGripper | None:
    if kind == "none":
        return None
    return Robotiq(world, hil=hil) if kind == "robotiq" else FrankaHand(world, hil=hil)
