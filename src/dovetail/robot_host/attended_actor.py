"""A robot with a person: after an emergency stop or a fault, the run waits for an acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.core.contracts import Actor
from dovetail.core.errors import RobotFault
from dovetail.core.types import Episode, EpisodeOrder, WeightSnapshot
from dovetail.live.emergency import emergency_reason
from dovetail.live.link import LiveLink

__all__ = ["ActorWrapper", "AttendedActor"]


class ActorWrapper:
    """Passes all calls but `run` to another actor."""

    def __init__(self, inner: Actor) -> None:
        self._inner = inner

    @property
    def stopped(self) -> bool:
        return self._inner.stopped

    @property
    def fault(self) -> str | None:
        return self._inner.fault

    def load(self, snapshot: WeightSnapshot) -> None:
        self._inner.load(snapshot)

    def acknowledge(self) -> None:
        self._inner.acknowledge()

    def telemetry(self) -> Mapping[str, float]:
        return self._inner.telemetry()

    def close(self) -> None:
        self._inner.close()


class AttendedActor(ActorWrapper):
    """See the Actor contract. After an emergency stop it waits for an acknowledgement.

    After another fault it waits if `link.waits`; otherwise the run ends.
    """

    def __init__(self, inner: Actor, link: LiveLink, *, should_stop: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._link, self._should_stop = link, should_stop
        self._stopped = False
        # a fault without an acknowledgement, and its `since`: the arm was cut off, or the run ends
        self._waiting: tuple[str, int] | None = None
        self.was_acknowledged = False  # whether a person acknowledged the fault of the last episode

    @property
    def stopped(self) -> bool:
        return self._stopped or self._inner.stopped

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped = self.was_acknowledged = False
        # an arm that was cut off goes on: the person may have acknowledged meanwhile
        if self._waiting is not None and not self._wait_for_acknowledgement(*self._waiting):
            return None
        since = self._link.stop.position
        while (pressed := emergency_reason(self._link.mailbox, self._link.stop)) is not None:
            if not self._wait_for_acknowledgement(pressed, since):
                return None
            since = self._link.stop.position
        self._link.update(episode={"id": order.id, "purpose": order.purpose.value, "number": order.index + 1})
        episode: Episode | None = None
        try:
            episode = self._inner.run(order)
            fault = self._inner.fault
        except RobotFault as error:
            if self._should_stop() or not self._waits(since):
                raise
            fault = str(error)
        if episode is not None:
            self._link.announce_end(episode)
        if fault is not None and not self.stopped and self._waits(since):
            self._wait_for_acknowledgement(fault, since)
        return episode

    def acknowledge(self) -> None:
        self._waiting = None
        super().acknowledge()

    def _waits(self, since: int) -> bool:
        """A person pressed an emergency stop, so a person can acknowledge it."""
        return self._link.waits or self._link.was_stopped(since)

    def _wait_for_acknowledgement(self, fault: str, since: int) -> bool:
        """Wait until a person acknowledges the fault. Return False if the run is to end instead."""
        if self._link.wait_for_acknowledgement(fault, since=since, should_stop=self._should_stop):
            self.acknowledge()
            self.was_acknowledged = True
            return True
        self._stopped, self._waiting = True, (fault, since)
        return False
