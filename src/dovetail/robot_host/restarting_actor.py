"""Restarts the processes of an arm after another process has killed one of them: that is not a fault of the robot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dovetail.core.errors import FailureError, RobotFault, StopRequested
from dovetail.core.types import Episode, EpisodeOrder, WeightSnapshot
from dovetail.robot_host.attended_actor import ActorWrapper
from dovetail.robot_host.host import RobotHost

__all__ = ["RestartingActor"]

_MAX_KILLS, _WITHIN_S = 4, 60.0  # this many kills within this time are a fault


class RestartingActor(ActorWrapper):
    """See the Actor contract. The arm was stopped and the episode ended there; new processes run the next one.

    A failure of a driver or a policy remains a fault that a person must acknowledge. `on_restart(process, pid)` is
    called after a restart.
    """

    def __init__(self, host: RobotHost, *, on_restart: Callable[[str, int], None]) -> None:
        super().__init__(host)
        self._host, self._on_restart = host, on_restart
        self._kill_times_s: deque[float] = deque(maxlen=_MAX_KILLS)

    def run(self, order: EpisodeOrder) -> Episode | None:
        try:
            episode = self._host.run(order)
        except (FailureError, RobotFault):
            if not self._restart():
                raise
            return None
        if not self._host.stopped:
            self._restart()
        return episode

    def _restart(self) -> bool:
        while (killed := self._host.killed_process) is not None:
            times_s = self._kill_times_s
            times_s.append(time.monotonic())
            if len(times_s) == _MAX_KILLS and times_s[-1] - times_s[0] < _WITHIN_S:
                return False
            self._host.acknowledge()
            try:
                self._host.start()
            except StopRequested:
                pass  # they go on starting
            except FailureError:  # a process was killed during the start, or cannot start
                continue
            self._on_restart(killed, self._host.processes[killed])
            return True
        return False

    def load(self, snapshot: WeightSnapshot) -> None:
        try:
            self._host.load(snapshot)
        except FailureError:  # killed between two episodes
            if not self._restart():
                raise
            self._host.load(snapshot)
