"""The figures of an evaluation in text: the main figure with its interval, and the others below it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from dovetail.cli._terminal import rate_line
from dovetail.core.figures import Mean, Performance, short
from dovetail.core.stats import Rate

__all__ = ["evaluation_lines", "metric_line", "rate_labels"]

_LABEL_WIDTH = 22


def rate_labels(*, env_steps: int) -> dict[str, str]:
    """Labels of the main evaluations. Without online steps, the last one is after offline training."""
    after = "after online learning" if env_steps else "after training"
    return {"untrained": "untrained", "cloning": "behavior cloning", "after": after}


def evaluation_lines(evaluations: Mapping[str, Performance]) -> list[Text]:
    """One line for the main figure of each evaluation, by label, one for its other figures, and one for each prompt."""
    lines = []
    for label, performance in evaluations.items():
        main = performance.main
        if isinstance(main, Rate):
            lines.append(rate_line(label, main))
        elif main is not None:
            lines.append(_return_line(label, main))
        if performance.details:
            lines.append(_detail_line(performance.details))
        lines += [
            _detail_line(f"'{prompt}': {of.headline}") for prompt, of in performance.by_prompt.items() if of.main
        ]
    return lines


def metric_line(performance: Performance) -> Text | None:
    """The means of the task's metrics."""
    metrics = performance.metrics
    return (
        _detail_line(", ".join(f"{name} {short(value)}" for name, value in metrics.items())) if metrics else None
    )


def _detail_line(text: str) -> Text:
    return Text(f"  {'':<{_LABEL_WIDTH}}{text}", style="bright_black")


def _return_line(label: str, returns: Mean) -> Text:
    text = Text(f"  {label:<{_LABEL_WIDTH}}")
    text.append(f"return {short(returns.mean)}", style="bold")
    text.append(f"  [{short(returns.low)}, {short(returns.high)}] of {returns.count}", style="bright_black")
    return text
