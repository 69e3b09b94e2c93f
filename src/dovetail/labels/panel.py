"""Labelers that decide together: asked in order, the first who is sure enough decides, and otherwise a person is asked.

hearing = panel.ask(episode)                  # those that are quick; never waits
while not hearing.over:
    hearing = panel.go_on(episode, hearing)   # the others, where nobody minds; raises LabelError while one is away
hearing.decided, hearing.reasons              # labels or none, and why a person is asked, if one is
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

__all__ = ["OPINION", "Hearing", "Panel"]

OPINION = -1  # the priority of what was said and does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """How far an episode has come: who has said what, and, once it is `over`, what came of it."""

    said: tuple[Labels, ...] = ()  # in the order they were asked
    over: bool = False
    decided: Labels | None = None
    reasons: tuple[
        Reason, ...
    ] = ()  # why a person is asked; where one is asked in any case, beside what was decided

    @property
    def opinions(self) -> tuple[Labels, ...]:
        """What was said and does not count, to be kept beside what does."""
        others = (labels for labels in self.said if labels is not self.decided)
        return tuple(dataclasses.replace(labels, priority=OPINION) for labels in others)


class Panel:
    """A labeler that has a `max_concurrent` is slow, and may be asked about so many episodes at once; one that
    `asks_person` stands for a person, and comes last. One that has a `check(robot)` may refuse
    a robot, one that `reads_metrics` a task, by
    `check_metrics(names)`."""

    def __init__(
        self, labelers: Sequence[Labeler], *, min_confidence: float = 0.8, cross_check: bool = False
    ) -> None:
        self._asks_person = bool(labelers) and _is_person(labelers[-1])
        self._labelers = labelers[:-1] if self._asks_person else labelers
        self._min_confidence = min_confidence
        self._cross_check = cross_check
        if any(_is_person(labeler) for labeler in self._labelers):
            raise UsageError("a person is asked last: put `human` at the end of `labels`")

    @property
    def labelers(self) -> Sequence[Labeler]:
        """Those that are asked, in their order; a person is none of them."""
        return self._labelers

    @property
    def max_concurrent(self) -> int | None:
        """How many episodes its slow labelers may be asked about at once; None: all are quick."""
        limits = [one.max_concurrent for one in self._labelers if isinstance(one, SlowLabeler)]
        return min(limits) if limits else None

    @property
    def judge(self) -> JudgesObservations | None:
        """The first who can judge a single observation, quickly: `judge(observation)`, the probability that it is done."""
        return next((one for one in self._labelers if isinstance(one, JudgesObservations)), None)

    def check(self, robot: RobotSpec) -> None:
        """Refuse, before anything moves, a robot that does not have what a labeler looks at."""
        for labeler in self._labelers:
            if isinstance(labeler, ChecksRobot):
                labeler.check(robot)

    @property
    def reads_metrics(self) -> bool:
        """Whether it matters what the task measures."""
        return any(isinstance(one, ChecksMetrics) and one.reads_metrics for one in self._labelers)

    def check_metrics(self, names: Collection[str]) -> None:
        """Refuse, before anything is recorded, a task that does not measure what a labeler looks at."""
        for labeler in self._labelers:
            if isinstance(labeler, ChecksMetrics) and labeler.reads_metrics:
                labeler.check_metrics(names)

    def ask(self, episode: Episode) -> Hearing:
        """Those that are quick, up to the first slow one."""
        return self._ask(episode, Hearing(), slow=False)

    def go_on(self, episode: Episode, hearing: Hearing) -> Hearing:
        """All that are left, whatever time it takes."""
        return self._ask(episode, hearing, slow=True)

    def is_sure(self, labels: Labels) -> bool:
        return labels.confidence >= self._min_confidence

    def _ask(self, episode: Episode, hearing: Hearing, *, slow: bool) -> Hearing:
        said = list(hearing.said)
        for labeler in self._labelers[len(said) :]:
            if not self._cross_check and said and self.is_sure(said[-1]):
                break
            if isinstance(labeler, SlowLabeler) and not slow:
                return Hearing(said=tuple(said))
            said.append(labeler.label(episode))
        return self._close(tuple(said))

    def _close(self, said: tuple[Labels, ...]) -> Hearing:
        decided = next((labels for labels in said if self.is_sure(labels)), None)
        reasons: list[Reason] = []
        if self._cross_check and len({bool(labels.success) for labels in said}) > 1:
            decided = None
            reasons.append(Reason.DISAGREEMENT)
        elif decided is None and said:
            reasons.append(Reason.UNCERTAIN)
        if self._asks_person and (not said or (self._cross_check and decided is not None)):
            reasons.append(Reason.NEW)
        return Hearing(said=said, over=True, decided=decided, reasons=tuple(reasons))


def _is_person(labeler: Labeler) -> bool:
    return isinstance(labeler, AsksPerson) and labeler.asks_person
