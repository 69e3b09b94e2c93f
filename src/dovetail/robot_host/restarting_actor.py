"""An arm whose processes are started anew when something else has killed them: that is no fault of the robot's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from dovetail.core.errors import FailureError, RobotFault
from dovetail.core.types import Episode, EpisodeOrder, WeightSnapshot
from dovetail.robot_host.host import RobotHost

__all__ = ["RestartedActor"]

_OFTEN, _WITHIN_S = 4, 60.0  # then it is a fault after all


class RestartedActor:
    """See the Actor contract. The arm was stopped, and the episode is what it was until then; the next one is run by new
    processes. What fails by itself, in a driver or in a policy, stays a fault that somebody must see to.

    `tell(process, pid)` is called once a process that was killed is there again.
    """

    def __init__(self, host: RobotHost, *, tell: Callable[[str, int], None]) -> None:
        self._host, self._tell = host, tell
        self._deaths: deque[float] = deque(maxlen=_OFTEN)

    @property
    def stopped(self) -> bool:
        return self._host.stopped

    @property
    def fault(self) -> str | None:
        return self._host.fault

    def run(self, order: EpisodeOrder) -> Episode | None:
        try:
            episode = self._host.run(order)
        except (FailureError, RobotFault):
            if not self._start_anew():
                raise
            return None
        if not self._host.stopped:
            self._start_anew()
        return episode

    def _start_anew(self) -> bool:
        while (killed := self._host.killed) is not None:
            self._deaths.append(time.monotonic())
            if len(self._deaths) == _OFTEN and self._deaths[-1] - self._deaths[0] < _WITHIN_S:
                return False
            self._host.acknowledge()
            try:
                self._host.start()
            except FailureError:  # somebody was killed before all were ready, or cannot start
                continue
            self._tell(killed, self._host.processes[killed])
            return True
        return False

    def load(self, snapshot: WeightSnapshot) -> None:
        try:
            self._host.load(snapshot)
        except FailureError:  # killed between two episodes
            if not self._start_anew():
                raise
            self._host.load(snapshot)

    def acknowledge(self) -> None:
        self._host.acknowledge()

    def telemetry(self) -> Mapping[str, float]:
        return self._host.telemetry()

    def close(self) -> None:
        self._host.close()
