"""`dovetail eval`: a progress bar, then a line per arm."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dovetail.api.evaluation import evaluate
from dovetail.cli._session import STOPPED
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, rate_line, say

__all__ = ["show_evaluation"]


def show_evaluation(target: str, *, quiet: bool, **options: Any) -> int:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        StopFlag() as stop,
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
    ):
        task = bar.add_task("evaluating", total=None)

        def show(successes: int, played: int, total: int) -> None:
            text = f"evaluating, {successes} of {played} succeeded"
            bar.update(task, completed=played, total=total, description=text)

        result = evaluate(target, **options, on_episode=show, should_stop=stop, announce=say)
    for arm in result.arms:
        if arm.rate is None or not arm.complete:
            played = arm.rate.episodes if arm.rate else 0
            say(f"stopped after {played} of {arm.num_requested} episodes; nothing was recorded")
            return STOPPED
        label = result.weights if arm.robot is None else f"{result.weights}, {arm.robot}"
        console.print(rate_line(label, arm.rate), soft_wrap=True)
    if result.not_recorded:
        say(f"not recorded in {result.not_recorded}")
    return 0
