"""The result of an episode, and the health check that may end it."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.types import Outcome

__all__ = ["EpisodeEnd", "HealthCheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """How an episode ended. The robot has latched `fault` and does not move until it is acknowledged."""

    outcome: Outcome
    judgement: Outcome | None
    num_steps: int
    stopped: bool
    fault: str | None = None
    reset_s: float | None = None  # from the order to the first action, by the robot's clock; None: no action
    has_success: bool = True  # False: the task does not detect success


class HealthCheck:
    """Health check, called once per tick. The default reports no problems."""

    def hold_reason(self) -> str | None:
        """Why the arm must hold for now, or None."""
        return None

    def stop_reason(self) -> str | None:
        """Why the arm must stop with a fault, or None."""
        return None

    def report_emergency(self, operator: str) -> None:
        """The operator has pressed the emergency stop of a device at this arm."""
