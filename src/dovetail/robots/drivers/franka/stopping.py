"""How a Franka arm is stopped over HTTP, from any process.

The impedance controller pulls the arm toward an equilibrium. So the arm stops when the equilibrium becomes the measured
pose: `/getpos`, then `/pose`. The controller stays on and holds the arm there, with the stiffness that it has. If the server
does not do that, `/stopimp` switches the impedance controller off, and the arm's own controller keeps its position.
`/stopimp` is not the first choice: it ends a process on the server, which takes longer, and starting again takes seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.franka.connection import Connection
from dovetail.robots.drivers.franka.state import read_pose

__all__ = ["FrankaStop"]

_NUM_ATTEMPTS = 2
_OPEN_S = 3.0  # while a run starts, nothing is urgent and both computers may be busy
_TIMEOUT_S = 0.15  # of one request: the guard waits 1 s for the whole stop
_SAME_PLACE_M, _SAME_DIRECTION = (
    0.03,
    0.99,
)  # of a held arm that sags: 3 cm, and 0.28 rad as a product of quaternions


class _ArmStop:
    def __init__(self, address: str) -> None:
        self._connection = Connection(address, timeout_s=_TIMEOUT_S)
        self._lock = threading.Lock()
        self._held: list[float] | None = None
        self.controller_is_off = False

    def open(self) -> None:
        read_pose(self._connection, timeout_s=_OPEN_S)

    def stop(self, *, again: bool) -> None:
        with self._lock:
            if not again:
                self._held = None
            problem = self._hold()
            if problem is None:
                return
            try:
                self._connection.post("/stopimp")
            except RobotError as error:
                raise RobotError(
                    f"the Franka arm did not stop: {problem}; then {error}. Use its emergency stop"
                ) from error
            self.controller_is_off = True

    def close(self) -> None:
        self._connection.close()

    def _hold(self) -> RobotError | None:
        """Set the equilibrium to the measured pose, or to the pose that it holds. Returns what failed."""
        problem: RobotError | None = None
        for _ in range(_NUM_ATTEMPTS):
            try:
                here = read_pose(self._connection)
                if self._held is None or not _is_near(self._held, here):  # a person may have moved it
                    self._held = here
                self._connection.post("/pose", {"arr": self._held})
                return None
            except RobotError as error:
                problem = error
        return problem


def _is_near(held: list[float], here: list[float]) -> bool:
    one, other = np.array(held), np.array(here)
    is_near = np.linalg.norm(one[:3] - other[:3]) < _SAME_PLACE_M
    return bool(is_near and abs(one[3:] @ other[3:]) > _SAME_DIRECTION)


class FrankaStop:
    """Connections of their own that only stop the arms. `stop` may be called from any thread."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._arms = [_ArmStop(address) for address in addresses]

    def open(self) -> None:
        """Connect now. Raises RobotError if a server does not answer."""
        for arm in self._arms:
            arm.open()

    def controller_is_off(self, number: int) -> bool:
        """Whether `stop` had to switch off the controller of an arm."""
        return self._arms[number].controller_is_off

    def controller_was_started(self, number: int) -> None:
        self._arms[number].controller_is_off = False

    def stop(self, *, again: bool = False) -> None:
        """Stop all arms at the same time. `again`: hold where the last call did, so that the arm does not creep. An arm that
        was moved since holds where it is."""
        if len(self._arms) == 1:
            self._arms[0].stop(again=again)
            return
        problems: list[str] = []
        threads = [
            threading.Thread(target=self._stop_one, args=(arm, again, problems), daemon=True) for arm in self._arms
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise RobotError("; ".join(problems))

    def close(self) -> None:
        for arm in self._arms:
            arm.close()

    @staticmethod
    def _stop_one(arm: _ArmStop, again: bool, problems: list[str]) -> None:
        try:
            arm.stop(again=again)
        except RobotError as error:
            problems.append(str(error))
