"""Who may practise next: episodes are numbered over all arms, and simulated ones wait for a learner that is behind."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ticket", "Tickets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    index: int  # of the episode, over all arms
    robot_minutes: float


class Tickets:
    """The update-to-data ratio of all arms together. The counts are kept up to date by whoever has them."""

    def __init__(self, *, utd: float, start_after_steps: int, max_behind_steps: int, max_steps: int) -> None:
        self._utd, self._start_after = utd, start_after_steps
        self._max_behind, self._max_steps = max_behind_steps, max_steps
        self.env_steps = 0  # of all that was delivered
        self.trained_steps = 0  # of what is learned from
        self.updates = 0
        self.next_index = 0

    @property
    def behind_steps(self) -> float:
        """Steps that the learner has not done the updates for."""
        return max(0.0, max(0, self.trained_steps - self._start_after) - self.updates / self._utd)

    def take(self, *, real_time: bool, robot_minutes: float = 0.0) -> Ticket | None:
        """None: not now."""
        if self.env_steps >= self._max_steps or (not real_time and self.behind_steps > self._max_behind):
            return None
        ticket = Ticket(index=self.next_index, robot_minutes=robot_minutes)
        self.next_index += 1
        return ticket
