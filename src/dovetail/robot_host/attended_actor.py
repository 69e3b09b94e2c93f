"""A robot with a console: the emergency stop of the console stops it, and after a fault the run waits for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.actor.control import EMERGENCY, HealthCheck
from dovetail.core.contracts import Actor
from dovetail.core.errors import RobotFault
from dovetail.core.types import Episode, EpisodeOrder, WeightSnapshot
from dovetail.human.mailbox import Mailbox
from dovetail.live.link import LiveLink

__all__ = ["ActorWrapper", "AttendedActor", "EmergencyStopCheck"]


class EmergencyStopCheck(HealthCheck):
    """Adds the console's emergency stop to another health check. It stops the robot until it is acknowledged."""

    def __init__(self, box: Mailbox, inner: HealthCheck | None = None) -> None:
        self._box, self._inner = box, inner or HealthCheck()

    def hold_reason(self) -> str | None:
        return self._inner.hold_reason()

    def stop_reason(self) -> str | None:
        return EMERGENCY if self._box.emergency else self._inner.stop_reason()


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
    """See the Actor contract. After a fault it waits for an acknowledgement if `link.waits`; otherwise the run ends."""

    def __init__(self, inner: Actor, link: LiveLink, *, should_stop: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._link, self._should_stop = link, should_stop
        self._stopped = False
        self.was_acknowledged = False  # whether a person acknowledged the fault of the last episode

    @property
    def stopped(self) -> bool:
        return self._stopped or self._inner.stopped

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped = self.was_acknowledged = False
        pressed_before = self._link.mailbox.emergency
        if pressed_before and not self._wait_for_acknowledgement(EMERGENCY):
            return None
        self._link.update(episode={"id": order.id, "purpose": order.purpose.value, "number": order.index + 1})
        episode: Episode | None = None
        try:
            episode = self._inner.run(order)
            fault = self._inner.fault
        except RobotFault as error:
            if self._should_stop() or not self._link.waits:
                raise
            fault = str(error)
        if fault is not None and not self.stopped and self._link.waits:
            self._wait_for_acknowledgement(fault)
        return episode

    def _wait_for_acknowledgement(self, fault: str) -> bool:
        """False if the run is to end instead."""
        if self._link.wait_for_acknowledgement(fault, should_stop=self._should_stop):
            self._inner.acknowledge()
            self.was_acknowledged = True
            return True
        self._stopped = True
        return False
