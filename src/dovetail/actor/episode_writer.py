"""Copies an episode from the board to a recorder, in segments."""

from __future__ import annotations

import numpy as np

from dovetail.actor.board import Board
from dovetail.core.contracts import Recorder
from dovetail.core.errors import FailureError
from dovetail.core.types import Array, Episode, EpisodeStart, Outcome, PromptChange, Segment

__all__ = ["EpisodeWriter"]


class EpisodeWriter:
    """Call `begin`, `flush` now and then, and `end`. Raises FailureError if it is too slow; never leaves a gap."""

    def __init__(self, board: Board, recorder: Recorder | None, *, keep: bool) -> None:
        self._board, self._recorder = board, recorder
        self._keep = keep  # segments in memory, to return the episode
        self._start: EpisodeStart | None = None

    def begin(self, start: EpisodeStart, *, first: int) -> None:
        self._start = start
        self._first = self._next = first
        self._prompt_number = 0
        self._segments: list[Segment] = []
        if self._recorder is not None:
            self._recorder.begin(start)

    @property
    def num_unwritten_steps(self) -> int:
        """Number of complete steps that are not written yet."""
        return max(0, self._board.num_stepped - self._next) if self._start else 0

    def flush(self) -> None:
        """Write all but the newest step, so that the final segment is never empty."""
        self._write(self._board.num_stepped - 1, final=False)

    def end(
        self,
        *,
        outcome: Outcome,
        judgement: Outcome | None,
        num_steps: int,
        reset_s: float | None = None,
        has_success: bool = True,
    ) -> Episode | None:
        """Finish after `num_steps` steps. Return the episode if it was kept and has steps."""
        assert self._start is not None, "begin() comes first"
        self._write(self._first + num_steps, final=True)
        if self._recorder is not None:
            self._recorder.end(outcome=outcome, judgement=judgement, reset_s=reset_s, has_success=has_success)
        start, self._start = self._start, None
        if not self._segments:
            return None
        return Episode.of(
            start,
            self._segments,
            outcome=outcome,
            judgement=judgement,
            reset_s=reset_s,
            has_success=has_success,
        )

    def _write(self, end: int, *, final: bool) -> None:
        if self._start is None or end <= self._next:
            return
        columns = self._board.columns(self._next, end)
        changes, prompt_number = self._prompt_changes(self._board.prompt_numbers(self._next, end))
        after = self._board.copy(end)
        if self._board.is_overwritten(self._next):
            raise FailureError(
                f"the recorder is more than {self._board.layout.num_rows} ticks behind the robot: the disk is too "
                "slow for this many images. Increase actor.recorder_buffer_s"
            )
        segment = Segment(
            episode_id=self._start.id,
            first=self._next - self._first,
            final=final,
            columns=columns,
            last_observation=after if final else None,
            prompt_changes=changes,
        )
        if self._recorder is not None:
            self._recorder.append(segment, after=after)
        if self._keep:
            self._segments.append(segment)
        self._next, self._prompt_number = end, prompt_number

    def _prompt_changes(self, numbers: Array) -> tuple[tuple[PromptChange, ...], int]:
        """The changes at the next steps, and the number of the last prompt."""
        changed = np.flatnonzero(np.diff(numbers, prepend=self._prompt_number))
        changes = [
            PromptChange(step=self._next - self._first + int(at), prompt=self._board.prompt_text(int(numbers[at])))
            for at in changed
        ]
        return tuple(changes), int(numbers[-1])
