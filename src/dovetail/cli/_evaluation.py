"""`dovetail eval`: a progress bar, then a line per arm."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dovetail.api.evaluation import evaluate
from dovetail.cli._figures import evaluation_lines, metric_line
from dovetail.cli._judging_keys import JudgingKeys
from dovetail.cli._session import STOPPED
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.core.figures import Performance

__all__ = ["show_evaluation"]


def show_evaluation(target: str, *, quiet: bool, **options: Any) -> int:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        StopFlag() as stop,
        JudgingKeys() as keys,
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
    ):
        task = bar.add_task("evaluating", total=None)

        def show(performance: Performance, total: int) -> None:
            text = f"evaluating: {performance.headline}"
            bar.update(task, completed=performance.num_episodes, total=total, description=text)

        result = evaluate(target, **options, on_episode=show, should_stop=stop, announce=say, on_link=keys)
    for arm in result.arms:
        if arm.performance is None or not arm.complete:
            say(f"stopped after {len(arm.scores)} of {arm.num_requested} episodes; nothing was recorded")
            return STOPPED
        label = result.weights if arm.robot is None else f"{result.weights}, {arm.robot}"
        for line in evaluation_lines({label: arm.performance}):
            console.print(line, soft_wrap=True)
        if metrics := metric_line(arm.performance):
            console.print(metrics, soft_wrap=True)
    if result.not_recorded:
        say(f"not recorded in {result.not_recorded}")
    return 0
