"""A robot with somebody watching: an emergency stop is an alarm, and after a fault the run waits for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.actor.control import EMERGENCY, Watch
from dovetail.core.contracts import Actor
from dovetail.core.errors import RobotFault
from dovetail.core.types import Episode, EpisodeOrder, WeightSnapshot
from dovetail.human.mailbox import Mailbox
from dovetail.live.link import LiveLink

__all__ = ["AttendedActor", "DeskWatch"]


class DeskWatch(Watch):
    """What else is watched over, and the emergency stop of whoever sits at the desk: an alarm until acknowledged."""

    def __init__(self, box: Mailbox, inner: Watch | None = None) -> None:
        self._box, self._inner = box, inner or Watch()

    def worry(self) -> str | None:
        return self._inner.worry()

    def alarm(self) -> str | None:
        return EMERGENCY if self._box.emergency else self._inner.alarm()


class AttendedActor:
    """See the Actor contract. Without a console, and where nobody asked for one, a fault ends the run as ever."""

    def __init__(self, inner: Actor, link: LiveLink, *, should_stop: Callable[[], bool]) -> None:
        self._inner, self._link, self._should_stop = inner, link, should_stop
        self._stopped = False
        self.was_acknowledged = False  # what cut the last episode short

    @property
    def stopped(self) -> bool:
        return self._stopped or self._inner.stopped

    @property
    def fault(self) -> str | None:
        return self._inner.fault

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped = self.was_acknowledged = False
        if self._link.mailbox.emergency and not self._waited_for(EMERGENCY):  # pressed between two episodes
            return None
        facts = {"id": order.id, "purpose": order.purpose.value, "number": order.index + 1}
        self._link.tell(episode=facts)
        episode: Episode | None = None
        try:
            episode = self._inner.run(order)
            fault = self._inner.fault
        except RobotFault as error:
            if self._should_stop() or not self._link.waits:
                raise
            fault = str(error)
        if fault is not None and not self.stopped and self._link.waits:
            self._waited_for(fault)
        return episode

    def load(self, snapshot: WeightSnapshot) -> None:
        self._inner.load(snapshot)

    def acknowledge(self) -> None:
        self._inner.acknowledge()

    def telemetry(self) -> Mapping[str, float]:
        return self._inner.telemetry()

    def close(self) -> None:
        self._inner.close()

    def _waited_for(self, fault: str) -> bool:
        """Until it was acknowledged; False if the run is to end instead."""
        if self._link.await_acknowledgement(fault, should_stop=self._should_stop):
            self._inner.acknowledge()
            self.was_acknowledged = True
            return True
        self._stopped = True
        return False
