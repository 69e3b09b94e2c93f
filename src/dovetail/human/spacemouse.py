"""A SpaceMouse at the robot's machine, through pyspacemouse 2 or 1.

Pushing the cap takes over. At rest the arm stands still, and the operator keeps control. Pressing both buttons returns it to
the policy. The left button closes the gripper, the right one opens it. `next_button` chooses what the cap moves: the next
arm, six joints of it at a time if its geometry is not known, or the base.

A SpaceMouse sends a report every 8 ms while its cap is pushed and none at rest. So a pushed cap without reports is a lost
device: the arm holds after 0.25 s, until the cap is released and pushed again. A held gripper button sends nothing even in
range, so with the cap at rest it may be silent for 1 s; a tap moves the gripper all the way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event
from dovetail.human.device import Device, DeviceOperator, DeviceReader, Reading, load_library
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.mailbox import EXPIRY_S

__all__ = ["SpaceMouseConfig", "SpaceMouseDevice", "SpaceMouseOperator"]

_MAX_REPORTS = 64  # per reading
GRIP_SILENCE_S = 1.0
_SETTLE_NS = NS_PER_S // 10  # a cap that is pushed while the device opens has sent a report by then


class SpaceMouseConfig(DriveConfig):
    """A SpaceMouse."""

    BASIC: ClassVar[Collection[str]] = ("speed",)
    RENAMED: ClassVar[Mapping[str, str]] = {"threshold": "dead_zone", "linger_s": "release_after_s"}

    dead_zone: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Smallest deflection of the cap that counts, from 0 to 1."""
    release_after_s: float | None = Field(default=None, ge=0.0)
    """Seconds at rest after which control returns to the policy. Null: only both buttons, pressed together, return it."""
    stop_button: int | None = Field(default=None, ge=2)
    """Number of the button that is the emergency stop, from 2: buttons 0 and 1 move the gripper. Null: none."""
    next_button: int | None = Field(default=None, ge=2)
    """Number of the button that chooses the next arm, joints or base, from 2. Null: none."""


class SpaceMouseDevice:
    def __init__(self, config: SpaceMouseConfig) -> None:
        self._config = config
        self._device: Any = None
        self._is_ros = False
        self._reported: object = None  # the library's time of the newest report
        self._report_ns = self._opened_ns = self._moved_ns = 0
        self._num_presses = 0  # pushes after a rest
        self._num_next, self._next_is_down = 0, False
        self._stop_is_down = self._held = self._may_take_over = False

    def open(self) -> None:
        library = load_library("pyspacemouse", package="pyspacemouse", operator="spacemouse")
        try:
            try:  # x forward, y left, z up
                self._device, self._is_ros = library.open(axis_convention=library.AxisConvention.ROS), True
            except AttributeError:  # before 2.1
                self._device, self._is_ros = library.open(), False
        except Exception as error:  # a vendor's library may raise anything
            raise UsageError(f"operator 'spacemouse': cannot open the device: {error}") from error
        if not self._device:
            raise UsageError(
                "operator 'spacemouse': no SpaceMouse found. Plug it in, or allow your user to read it (udev rules)"
            )
        self._reported = None
        self._report_ns = self._opened_ns = time.monotonic_ns()
        self._stop_is_down = self._held = self._may_take_over = False

    def read(self) -> Reading | None:
        (state, stops), now_ns = self._newest_state(), time.monotonic_ns()
        if state is None:
            return None
        cap, buttons = self._cap(state), [bool(button) for button in (*state.buttons, 0, 0)]
        both, grip = buttons[0] and buttons[1], buttons[1] - buttons[0]
        moves = bool(np.abs(cap).max() >= self._config.dead_zone)
        silent_s = (now_ns - self._report_ns) / NS_PER_S
        if silent_s > (EXPIRY_S if moves else GRIP_SILENCE_S if grip else np.inf):
            return None  # pushed and silent
        self._update_held(moves=moves or bool(grip), releases=both, now_ns=now_ns)
        axes = np.append(cap if moves else np.zeros(6), 0.0 if both else grip).astype(np.float32)
        return Reading(
            held=self._held,
            axes=axes,
            event=Event.EMERGENCY if stops else None,
            num_presses=self._num_presses,
            num_next=self._num_next,
            time_ns=self._report_ns if moves else now_ns,
        )

    def close(self) -> None:
        if self._device is not None:
            device, self._device = self._device, None
            device.close()

    def _newest_state(self) -> tuple[Any, bool]:
        """The state after all reports that have arrived, and whether one of them pressed the emergency stop."""
        number, stops, state = self._config.stop_button, False, None
        for _ in range(_MAX_REPORTS):
            try:
                state = self._device.read()
            except Exception:  # unplugged
                if stops:
                    break  # the press counts first; the next reading fails again
                raise
            if state is None or state.t == self._reported:
                break
            self._reported, self._report_ns = state.t, time.monotonic_ns()
            was_down = self._stop_is_down
            self._stop_is_down = _is_down(state, number)
            stops |= self._stop_is_down and not was_down
            chooses = _is_down(state, self._config.next_button)
            self._num_next += chooses and not self._next_is_down
            self._next_is_down = chooses
        return state, stops

    def _cap(self, state: Any) -> Array:
        """Forward, left, up, and the rotations about them; from -1 to 1."""
        if self._is_ros:
            cap = (state.x, state.y, state.z, state.roll, state.pitch, state.yaw)
        else:
            cap = (state.y, -state.x, state.z, state.roll, state.pitch, -state.yaw)
        return np.clip(np.array(cap, np.float64), -1.0, 1.0)

    def _update_held(self, *, moves: bool, releases: bool, now_ns: int) -> None:
        rests, limit_s = not moves and not releases, self._config.release_after_s
        if moves:
            self._moved_ns = now_ns
        if releases:
            self._held = self._may_take_over = False
        elif rests:
            self._may_take_over |= now_ns - self._opened_ns > _SETTLE_NS
            self._held &= limit_s is None or now_ns - self._moved_ns <= limit_s * NS_PER_S
        elif self._may_take_over:  # a push after a rest
            self._held, self._may_take_over = True, False
            self._num_presses += 1


def _is_down(state: Any, button: int | None) -> bool:
    return button is not None and button < len(state.buttons) and bool(state.buttons[button])


class SpaceMouseOperator(DeviceOperator):
    Config: ClassVar[type[SpaceMouseConfig]] = SpaceMouseConfig
    name = "spacemouse"
    joints_at_once = 6
    packages: ClassVar[Mapping[str, str]] = {"pyspacemouse": "pyspacemouse"}

    def __init__(
        self,
        config: SpaceMouseConfig,
        *,
        robot: RobotSpec,
        task: Task | None = None,
        device: Device | DeviceReader | None = None,
    ) -> None:
        super().__init__(device or self.make_device(config), robot=robot, config=config)

    @classmethod
    def make_device(cls, config: SpaceMouseConfig) -> Device:
        return SpaceMouseDevice(config)
