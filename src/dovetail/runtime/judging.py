"""A success that a labeler sees ends an episode of practice: `labeling.terminate_on_success`."""

from __future__ import annotations

from typing import Any

from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Operator
from dovetail.core.errors import UsageError
from dovetail.core.types import Observation
from dovetail.human.judged import Judged
from dovetail.labels.panel import Panel

__all__ = ["check_judge", "judged"]

_CONSECUTIVE = 3
_PROBABILITY = 0.9


def check_judge(config: RunConfig, panel: Panel) -> None:
    """Refuse, before anything moves, what cannot be judged while it happens."""
    if config.labeling.terminate_on_success is None:
        return
    if panel.judge is None:
        raise UsageError(
            "labeling.terminate_on_success needs a labeler that judges single observations: put `classifier` into `labels`"
        )
    if getattr(config.actor.config, "layout", "one_process") != "one_process":
        raise UsageError("labeling.terminate_on_success works in one process only: set actor.layout=one_process")


def judged(operator: Operator, config: RunConfig, panel: Panel, *, beside: bool) -> Operator:
    """An operator of practice, with the judge that the config asks for, if it does; `beside`: on a thread of its own."""
    rule = config.labeling.terminate_on_success
    if rule is None:
        return operator
    judge: Any = panel.judge
    wanted, consecutive = rule.probability, rule.consecutive

    def says(observation: Observation) -> float:
        """1 or 0, by what the one in use is calibrated to: it may be trained anew meanwhile."""
        probability = getattr(judge, "threshold", _PROBABILITY) if wanted is None else wanted
        return float(judge.judge(observation) >= probability)

    return Judged(
        operator,
        says,
        name=type(judge).__name__.removesuffix("Labeler").lower(),
        probability=1.0,
        consecutive=getattr(judge, "consecutive", _CONSECUTIVE) if consecutive is None else consecutive,
        every_steps=rule.every_steps,
        beside=beside,
    )
