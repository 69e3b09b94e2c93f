"""Success detection: a labeler's success ends an online episode (`labeling.terminate_on_success`).

In one process the operator is wrapped with the detector. If control runs in a process of its own, a thread of the
supervisor reads observations from the board and writes the results there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

from dovetail.actor.board import Board
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresLayout, DecidesSuccess, JudgesObservations
from dovetail.core.contracts import Operator
from dovetail.core.errors import UsageError
from dovetail.core.types import Observation
from dovetail.human.success_detection import InlineDetector, OperatorWithDetector, ThreadDetector
from dovetail.labels.chain import LabelerChain

__all__ = ["BoardSuccessDetector", "SuccessDetection", "check_success_detection", "make_success_detection"]

_CONSECUTIVE = 3
_PROBABILITY = 0.9
_POLL_S = 0.005
_JOIN_TIMEOUT_S = 1.0  # then a labeler that hangs is abandoned; its result comes after the episode


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessDetection:
    """A labeler that detects success in single observations, and when its results end an episode."""

    judge: JudgesObservations
    probability: float | None  # None: the labeler's own threshold
    consecutive: int
    every_steps: int

    @property
    def name(self) -> str:
        return type(self.judge).__name__.removesuffix("Labeler").lower()

    def detect(self, observation: Observation) -> float:
        """Return 1 for success, otherwise 0. The labeler's threshold may change when it is retrained."""
        threshold = self.probability
        if threshold is None:
            threshold = self.judge.threshold if isinstance(self.judge, DecidesSuccess) else _PROBABILITY
        return float(self.judge.judge(observation) >= threshold)

    def wrap_operator(self, operator: Operator, *, real_time: bool) -> Operator:
        """Return the operator of an online episode in this process, with success detection."""
        return OperatorWithDetector(
            operator,
            ThreadDetector(self.detect) if real_time else InlineDetector(self.detect),
            name=self.name,
            probability=1.0,
            consecutive=self.consecutive,
            every_steps=self.every_steps,
        )


def make_success_detection(config: RunConfig, chain: LabelerChain) -> SuccessDetection | None:
    rule, judge = config.labeling.terminate_on_success, chain.judge
    if rule is None or judge is None:
        return None
    consecutive = rule.consecutive
    if consecutive is None:
        consecutive = judge.consecutive if isinstance(judge, DecidesSuccess) else _CONSECUTIVE
    return SuccessDetection(
        judge=judge, probability=rule.probability, consecutive=consecutive, every_steps=rule.every_steps
    )


def check_success_detection(config: RunConfig, chain: LabelerChain, *, real_time: bool) -> None:
    """Raise UsageError if the run asks for success detection but cannot do it. Call it before anything moves."""
    if config.labeling.terminate_on_success is None:
        return
    if chain.judge is None:
        raise UsageError(
            "labeling.terminate_on_success needs a labeler that judges single observations. Add `classifier` to `labels`."
        )
    actor = config.actor.config
    if isinstance(actor, ConfiguresLayout) and actor.layout != "one_process" and not real_time:
        raise UsageError(
            "labeling.terminate_on_success in simulated time needs a single process. Set actor.layout=one_process or "
            "robot.realtime=true."
        )


class BoardSuccessDetector:
    """Thread that checks the newest observations on the board for success while an episode runs."""

    def __init__(self, success_detection: SuccessDetection, board: Board, *, first: int) -> None:
        self._detection, self._board, self._first = success_detection, board, first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._check_observations, name="success-detection", daemon=True)
        self.problem: Exception | None = None

    def __enter__(self) -> BoardSuccessDetector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _check_observations(self) -> None:
        board, next_row = self._board, self._first
        while not self._ended.is_set():
            row = board.num_seen - 1
            if row < next_row:
                self._ended.wait(_POLL_S)
                continue
            seen = board.copy(row)
            if board.is_overwritten(row):
                continue
            try:
                board.post_success_check(row, bool(self._detection.detect(seen)))
            except Exception as error:  # a thread's border: the episode continues, the host reports `problem`
                self.problem = error
                return
            next_row = row + self._detection.every_steps
