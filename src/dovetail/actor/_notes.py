"""An episode while it happens: its steps so far, flushed to a recorder in segments."""

from __future__ import annotations

from dovetail.core.contracts import Recorder
from dovetail.core.types import Episode, EpisodeStart, Observation, Outcome, Segment, Step

__all__ = ["Notes"]


class Notes:
    """`add` each step, then `end`. The newest step is held back: with the next one comes the observation after it."""

    def __init__(self, start: EpisodeStart, recorder: Recorder | None, *, flush_steps: int) -> None:
        self._start = start
        self._recorder = recorder
        self._flush_steps = flush_steps
        self._segments: list[Segment] = []
        self._steps: list[Step] = []  # not flushed yet
        self._first = 0
        if recorder is not None:
            recorder.begin(start)

    @property
    def num_steps(self) -> int:
        return self._first + len(self._steps)

    def add(self, step: Step) -> None:
        self._steps.append(step)
        if len(self._steps) > self._flush_steps:
            *ready, newest = self._steps
            segment = Segment.of(ready, episode_id=self._start.id, first=self._first)
            self._keep(segment, after=newest.observation)
            self._steps = [newest]

    def end(self, last: Observation, *, outcome: Outcome, judgement: Outcome | None) -> Episode | None:
        """The whole episode; None if nothing happened in it."""
        if self._steps:
            segment = Segment.of(self._steps, episode_id=self._start.id, first=self._first, last_observation=last)
            self._keep(segment, after=last)
        if self._recorder is not None:
            self._recorder.end(outcome=outcome, judgement=judgement)
        if not self._segments:
            return None
        return Episode.of(self._start, self._segments, outcome=outcome, judgement=judgement)

    def _keep(self, segment: Segment, *, after: Observation) -> None:
        if self._recorder is not None:
            self._recorder.append(segment, after=after)
        self._segments.append(segment)
        self._first += len(segment)
