"""What `gripper_pos` means in each server, and when to send a gripper command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.franka.settings import GripperFamily

__all__ = ["FAMILIES", "Gripper", "GripperMeaning"]

_MAX_OPENING_M = 0.08
_CLOSE_BELOW, _OPEN_ABOVE = (
    0.4,
    0.6,
)  # a command between them keeps the state, so that a noisy policy drops nothing
_PAUSE_S = 0.6  # between two commands: a gripper needs this long for one
_MAX_COMMANDS = 5  # without effect


@dataclass(frozen=True, slots=True, kw_only=True)
class GripperMeaning:
    """How a server reports its gripper."""

    low: float  # of `gripper_pos`
    high: float
    opening_at_low: float  # 0 closed, 1 open
    opening_at_high: float
    open_opening: float = 1.0  # reached by `/open_gripper`

    def opening(self, gripper_pos: float) -> float:
        """From 0 (closed) to 1 (open)."""
        share = (gripper_pos - self.low) / (self.high - self.low)
        return min(max(self.opening_at_low + share * (self.opening_at_high - self.opening_at_low), 0.0), 1.0)


FAMILIES: Mapping[GripperFamily, GripperMeaning] = {
    "serl_robotiq": GripperMeaning(low=0.0, high=255.0, opening_at_low=1.0, opening_at_high=0.0),
    "hil_serl_robotiq": GripperMeaning(
        low=0.0, high=1.0, opening_at_low=0.0, opening_at_high=1.0, open_opening=1.0 - 175.0 / 255.0
    ),
    "serl_franka": GripperMeaning(low=0.0, high=_MAX_OPENING_M, opening_at_low=0.0, opening_at_high=1.0),
    "hil_serl_franka": GripperMeaning(low=0.0, high=1.0, opening_at_low=0.0, opening_at_high=1.0),
}


class Gripper:
    """Turns the gripper axis into `/open_gripper` and `/close_gripper`, at most one each 0.6 s.

    A command is repeated while the measured opening contradicts it, because a server may lose or ignore one.
    """

    def __init__(self, family: GripperFamily) -> None:
        self._family, self._meaning = family, FAMILIES[family]
        self.command: float | None = None  # 0 closed, 1 open; None: not known before the first measurement
        self.opening = 0.0
        self._sent: float | None = None
        self._sent_ns: int | None = None
        self._num_sent = 0  # of the same command

    def measure(self, gripper_pos: float, *, where: str) -> None:
        meaning = self._meaning
        slack = 0.05 * (meaning.high - meaning.low)
        if not meaning.low - slack <= gripper_pos <= meaning.high + slack:
            raise RobotError(
                f"{where} sent gripper_pos {gripper_pos:g}, but {self._family} has {meaning.low:g} to {meaning.high:g}. "
                "Check robot.gripper"
            )
        self.opening = meaning.opening(gripper_pos)
        if self.command is None:
            self.command = 1.0 if self.opening >= 0.5 * meaning.open_opening else 0.0

    def restart(self) -> None:
        """Count commands from zero: a person has looked at the gripper."""
        self._num_sent = 0

    def next_path(self, wanted: float, now_ns: int) -> str | None:
        """The endpoint to call for the gripper axis now, or None."""
        if wanted < _CLOSE_BELOW:
            self.command = 0.0
        elif wanted > _OPEN_ABOVE:
            self.command = 1.0
        is_new = self.command != self._sent
        if (is_new and self._sent is None and not self._is_contradicted()) or (
            not is_new and not self._is_contradicted()
        ):
            self._num_sent = 0
            return None
        if self._sent_ns is not None and now_ns - self._sent_ns < _PAUSE_S * 1e9:
            return None
        self._num_sent = 1 if is_new else self._num_sent + 1
        if self._num_sent > _MAX_COMMANDS:
            word = "open" if self.command else "closed"
            raise RobotError(
                f"the gripper is not {word} after {_MAX_COMMANDS} commands (opening {self.opening:.2f}). HIL-SERL's Franka "
                "hand ignores a command that it has carried out before: move it by hand, then acknowledge"
            )
        self._sent, self._sent_ns = self.command, now_ns
        return "/open_gripper" if self.command else "/close_gripper"

    def _is_contradicted(self) -> bool:
        """Whether the measured opening shows that the command had no effect. An object may keep the fingers apart."""
        share = self.opening / self._meaning.open_opening
        return share < 0.5 if self.command else share > 0.95
