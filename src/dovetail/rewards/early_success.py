"""A success that a labeler sees ends an episode of practice: `labeling.terminate_on_success`.

In one process the judge is asked by whoever polls the operator. Where control is a process of its own, the supervisor looks
at the board in a thread, and control finds the answers there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dovetail.actor.board import Board
from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Operator
from dovetail.core.errors import UsageError
from dovetail.core.types import Observation
from dovetail.human.judged import AtOnce, Beside, Judged
from dovetail.labels.panel import Panel

__all__ = ["Onlooker", "Ruling", "check_judge", "ruling_of"]

_CONSECUTIVE = 3
_PROBABILITY = 0.9
_LOOK_S = 0.005
_LEAVE_S = 1.0  # a judge that hangs is left behind: what it says later is of an episode that is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Who says that an episode is done, and how often in a row."""

    judge: Any
    probability: float | None  # none: what the judge is calibrated to
    consecutive: int
    every_steps: int

    @property
    def name(self) -> str:
        return type(self.judge).__name__.removesuffix("Labeler").lower()

    def says(self, observation: Observation) -> float:
        """1 or 0, by what the one in use is calibrated to: it may be trained anew meanwhile."""
        calibrated = getattr(self.judge, "threshold", _PROBABILITY)
        return float(
            self.judge.judge(observation) >= (calibrated if self.probability is None else self.probability)
        )

    def beside(self, operator: Operator, *, real_time: bool) -> Operator:
        """An operator of practice in this process, with this judge."""
        return Judged(
            operator,
            Beside(self.says) if real_time else AtOnce(self.says),
            name=self.name,
            probability=1.0,
            consecutive=self.consecutive,
            every_steps=self.every_steps,
        )


def ruling_of(config: RunConfig, panel: Panel) -> Ruling | None:
    rule, judge = config.labeling.terminate_on_success, panel.judge
    if rule is None:
        return None
    calibrated: int = getattr(judge, "consecutive", _CONSECUTIVE)
    return Ruling(
        judge=judge,
        probability=rule.probability,
        consecutive=calibrated if rule.consecutive is None else rule.consecutive,
        every_steps=rule.every_steps,
    )


def check_judge(config: RunConfig, panel: Panel, *, real_time: bool) -> None:
    """Refuse, before anything moves, what cannot be judged while it happens."""
    if config.labeling.terminate_on_success is None:
        return
    if panel.judge is None:
        raise UsageError(
            "labeling.terminate_on_success needs a labeler that judges single observations: put `classifier` into `labels`"
        )
    if getattr(config.actor.config, "layout", "one_process") != "one_process" and not real_time:
        raise UsageError(
            "labeling.terminate_on_success, in simulated time, works in one process only: set actor.layout=one_process, or "
            "robot.realtime=true"
        )


class Onlooker:
    """While an episode runs: looks at the newest observation on the board again and again, and says there what it thinks."""

    def __init__(self, ruling: Ruling, board: Board, *, first: int) -> None:
        self._ruling, self._board, self._first = ruling, board, first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="judge", daemon=True)
        self.problem: Exception | None = None

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_LEAVE_S)

    def _watch(self) -> None:
        board, next_row = self._board, self._first
        while not self._ended.is_set():
            row = board.num_seen - 1
            if row < next_row:
                self._ended.wait(_LOOK_S)
                continue
            seen = board.copy(row)
            if board.is_overwritten(row):
                continue
            try:
                board.say_judged(row, bool(self._ruling.says(seen)))
            except (
                Exception
            ) as error:  # a thread's border: the episode goes on without it, and whoever ordered it is told
                self.problem = error
                return
            next_row = row + self._ruling.every_steps
