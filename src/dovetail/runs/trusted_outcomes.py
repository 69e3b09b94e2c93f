"""How episodes ended by the word of anybody but their labels: what those may be compared with."""

from __future__ import annotations

from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeInfo
from dovetail.labels.human import HUMAN
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder

__all__ = ["TrustedOutcomes"]

_NO_HANDS = {"none", "scripted"}  # operators who know no more than the task does


class TrustedOutcomes:
    """`hear` of every episode of the run; then ask whether one was `solved`."""

    def __init__(self, folder: RunFolder) -> None:
        self._config_hash, self._labeling = folder.config_hash, folder.config.labeling
        self._telling: set[str] = set()  # tasks that say when they are done: many a real one only times out

    def hear(self, info: EpisodeInfo) -> None:
        hands = info.operator.split("+")  # such as `scripted+classifier`
        by_people = hands[0] not in _NO_HANDS or "browser" in hands
        imported = info.config_hash != self._config_hash
        if info.outcome is Outcome.SUCCESS and not (by_people or imported or self._may_be_labelers(info)):
            self._telling.add(info.task)

    def solved(self, known: EpisodeRecord) -> bool | None:
        """As the task judged it, or whoever watched; None where nobody did, and where those who labelled it did."""
        info, labels = known.info, known.labels
        if labels is not None and labels.labeler == HUMAN:  # who corrects a verdict does not contradict it
            return None
        if (info.judgement or info.outcome) is Outcome.SUCCESS:
            return None if self._may_be_labelers(info) else True
        if info.judgement is not None:
            return False
        told = info.outcome is not Outcome.TIMEOUT or info.task in self._telling
        return False if told and not self._labeling.hide_success else None

    def _may_be_labelers(self, info: EpisodeInfo) -> bool:
        """Whether a labeler may have ended it: only ever as a success, which then stands as a judgement."""
        return self._labeling.terminate_on_success is not None and info.judgement is Outcome.SUCCESS
