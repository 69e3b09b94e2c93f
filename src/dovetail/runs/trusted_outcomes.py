"""Outcomes of episodes that do not come from the labelers, so that labels can be compared with them."""

from __future__ import annotations

from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeInfo
from dovetail.labels.human import HUMAN
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder

__all__ = ["TrustedOutcomes"]

_SCRIPTS = {"none", "scripted"}  # operators that judge no better than the task


class TrustedOutcomes:
    """`add` every episode of the run; then `solved` returns whether one succeeded."""

    def __init__(self, folder: RunFolder) -> None:
        self._config_hash, self._labeling = folder.config_hash, folder.config.labeling
        self._tasks: set[str] = set()  # tasks that detect success; many real ones only time out

    def add(self, info: EpisodeInfo) -> None:
        operators = info.operator.split("+")  # such as `scripted+classifier`
        by_person = operators[0] not in _SCRIPTS or "browser" in operators
        imported = info.config_hash != self._config_hash
        if info.outcome is Outcome.SUCCESS and not (by_person or imported or self._may_be_labelers(info)):
            self._tasks.add(info.task)

    def solved(self, record: EpisodeRecord) -> bool | None:
        """Success by the task or a person; None if neither judged it, or if its labeler may have ended it."""
        info, labels = record.info, record.labels
        if labels is not None and labels.labeler == HUMAN:  # a correction is not a contradiction
            return None
        if (info.judgement or info.outcome) is Outcome.SUCCESS:
            return None if self._may_be_labelers(info) else True
        if info.judgement is not None:
            return False
        judged = info.has_success and (info.outcome is not Outcome.TIMEOUT or info.task in self._tasks)
        return False if judged and not self._labeling.hide_success else None

    def _may_be_labelers(self, info: EpisodeInfo) -> bool:
        """Whether a labeler may have ended the episode. It does so only with a success, stored as the judgement."""
        return self._labeling.terminate_on_success is not None and info.judgement is Outcome.SUCCESS
