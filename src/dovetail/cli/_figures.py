"""The figures of an evaluation in text: the main figure with its interval, and the others below it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from dovetail.cli._terminal import rate_line
from dovetail.core.figures import Mean, Performance, short
from dovetail.core.stats import Rate

__all__ = ["evaluation_lines", "rate_labels"]

_LABEL_WIDTH = 22


def rate_labels(*, env_steps: int) -> dict[str, str]:
    """Labels of the main evaluations. Without online steps, the last one is after offline training."""
    after = "after online learning" if env_steps else "after training"
    return {"untrained": "untrained", "cloning": "behavior cloning", "after": after}


def evaluation_lines(evaluations: Mapping[str, Performance]) -> list[Text]:
    """One line for the main figure of each evaluation, by label, and one for its other figures."""
    lines = []
    for label, performance in evaluations.items():
        main = performance.main
        if isinstance(main, Rate):
            lines.append(rate_line(label, main))
        elif main is not None:
            lines.append(_return_line(label, main))
        if performance.details:
            lines.append(Text(f"  {'':<{_LABEL_WIDTH}}{performance.details}", style="bright_black"))
    return lines


def _return_line(label: str, returns: Mean) -> Text:
    text = Text(f"  {label:<{_LABEL_WIDTH}}")
    text.append(f"return {short(returns.mean)}", style="bold")
    text.append(f"  [{short(returns.low)}, {short(returns.high)}] of {returns.count}", style="bright_black")
    return text
