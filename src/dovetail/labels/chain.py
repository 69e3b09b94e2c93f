"""A chain of labelers: they are asked in order, and the first confident one decides. Otherwise a person is asked.

state = chain.ask(episode)                # the fast labelers; never blocks
while not state.finished:
    state = chain.resume(episode, state)  # the slow ones, on another thread; raises LabelError while one does not answer
state.decided, state.reasons              # labels or None, and why a person is asked, if so
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dovetail.core.abilities import AsksPerson, ChecksMetrics, ChecksRobot, JudgesObservations, SlowLabeler
from dovetail.core.contracts import Labeler
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Labels
from dovetail.labels.queue import Reason

__all__ = ["OPINION", "ChainState", "LabelerChain"]

OPINION = -1  # priority of labels that are stored but never valid


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """Labels of an episode so far and, once it is `finished`, the result."""

    labels: tuple[Labels, ...] = ()  # in the order of the labelers
    finished: bool = False
    decided: Labels | None = None
    reasons: tuple[Reason, ...] = ()  # why a person is asked, possibly in addition to the decided labels

    @property
    def opinions(self) -> tuple[Labels, ...]:
        """Labels that did not decide, with a priority that keeps them invalid."""
        others = (labels for labels in self.labels if labels is not self.decided)
        return tuple(dataclasses.replace(labels, priority=OPINION) for labels in others)


class LabelerChain:
    """Labelers in order; see `core.abilities` for what each may implement. One with `AsksPerson` must come last.

    With `cross_check` all labelers are asked, and a person decides if they disagree.
    """

    def __init__(
        self, labelers: Sequence[Labeler], *, min_confidence: float = 0.8, cross_check: bool = False
    ) -> None:
        self._asks_person = bool(labelers) and _is_person(labelers[-1])
        self._labelers = labelers[:-1] if self._asks_person else labelers
        self._min_confidence = min_confidence
        self._cross_check = cross_check
        if any(_is_person(labeler) for labeler in self._labelers):
            raise UsageError("a person is asked last. Move `human` to the end of `labels`.")

    @property
    def labelers(self) -> Sequence[Labeler]:
        """The labelers in order, without the person."""
        return self._labelers

    @property
    def max_concurrent(self) -> int | None:
        """Number of episodes that its slow labelers label at the same time; None: all labelers are fast."""
        limits = [one.max_concurrent for one in self._labelers if isinstance(one, SlowLabeler)]
        return min(limits) if limits else None

    @property
    def judge(self) -> JudgesObservations | None:
        """The first labeler that judges single observations."""
        return next((one for one in self._labelers if isinstance(one, JudgesObservations)), None)

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError if a labeler needs something that the robot lacks. Call it before anything moves."""
        for labeler in self._labelers:
            if isinstance(labeler, ChecksRobot):
                labeler.check(robot)

    @property
    def reads_metrics(self) -> bool:
        """Whether a labeler uses the task's metrics."""
        return any(isinstance(one, ChecksMetrics) and one.reads_metrics for one in self._labelers)

    def check_metrics(self, names: Collection[str]) -> None:
        """Raise UsageError if the task does not measure what a labeler reads."""
        for labeler in self._labelers:
            if isinstance(labeler, ChecksMetrics) and labeler.reads_metrics:
                labeler.check_metrics(names)

    def ask(self, episode: Episode) -> ChainState:
        """Ask the fast labelers up to the first slow one."""
        return self._ask(episode, ChainState(), slow=False)

    def resume(self, episode: Episode, state: ChainState) -> ChainState:
        """Ask all remaining labelers, which may take long."""
        return self._ask(episode, state, slow=True)

    def is_confident(self, labels: Labels) -> bool:
        return labels.confidence >= self._min_confidence

    def _ask(self, episode: Episode, state: ChainState, *, slow: bool) -> ChainState:
        given = list(state.labels)
        for labeler in self._labelers[len(given) :]:
            if not self._cross_check and given and self.is_confident(given[-1]):
                break
            if isinstance(labeler, SlowLabeler) and not slow:
                return ChainState(labels=tuple(given))
            given.append(labeler.label(episode))
        return self._decide(tuple(given))

    def _decide(self, given: tuple[Labels, ...]) -> ChainState:
        decided = next((labels for labels in given if self.is_confident(labels)), None)
        reasons: list[Reason] = []
        if self._cross_check and len({bool(labels.success) for labels in given}) > 1:
            decided = None
            reasons.append(Reason.DISAGREEMENT)
        elif decided is None and given:
            reasons.append(Reason.UNCERTAIN)
        if self._asks_person and (not given or (self._cross_check and decided is not None)):
            reasons.append(Reason.NEW)
        return ChainState(labels=given, finished=True, decided=decided, reasons=tuple(reasons))


def _is_person(labeler: Labeler) -> bool:
    return isinstance(labeler, AsksPerson) and labeler.asks_person
