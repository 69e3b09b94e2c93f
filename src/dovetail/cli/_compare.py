"""`dovetail compare`: a progress bar, then the figures of both policies and the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dovetail.api.comparison import Comparison, compare
from dovetail.cli._judging_keys import JudgingKeys
from dovetail.cli._session import STOPPED
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError
from dovetail.core.figures import EpisodeScore, Performance, short
from dovetail.core.sequential_test import Answer, SequentialTest

__all__ = ["answer_line", "show_comparison"]


def show_comparison(a: str, b: str, *, json_file: Path | None, quiet: bool, **options: Any) -> int:
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {json_file}: its folder does not exist")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        StopFlag() as stop,
        JudgingKeys() as keys,
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
    ):
        task = bar.add_task("comparing", total=options["num_episodes"])

        def show(so_far: Comparison) -> None:
            bar.update(task, completed=len(so_far.scores), description=f"comparing, {_difference(so_far)}")

        result = compare(a, b, **options, on_pair=show, should_stop=stop, announce=say, on_link=keys)
    if not result.scores:
        say("stopped before the first pair of episodes ended; nothing was recorded")
        return STOPPED
    if not quiet:
        console.print(_figures(result))
    say(answer_line(result))
    if json_file is not None:
        _write(json_file, result)
    if result.stopped:
        say(f"stopped after {len(result.scores)} of {result.max_pairs} pairs of episodes; nothing was recorded")
        return STOPPED
    if result.not_recorded:
        say(f"not recorded in {result.not_recorded}")
    return 0


def answer_line(result: Comparison) -> str:
    """The answer, and what it rests on."""
    test = result.test
    margin = _in_unit(result, test.margin, sign=False)
    answer = {
        Answer.NOT_WORSE: f"B is not worse than A by more than {margin}",
        Answer.WORSE: f"B is worse than A by more than {margin}",
        Answer.CANNOT_TELL: f"cannot tell whether B is worse than A by more than {margin}",
    }[test.answer]
    if test.answer is Answer.NOT_WORSE and test.low is not None and test.low > 0.0:
        answer += f", and better: {_difference(result)}"
    resets = "the same resets" if result.same_resets else "resets in random order"
    return f"{answer} ({_pairs(test)} on {resets}; {_certainty(result)})"


def _pairs(test: SequentialTest) -> str:
    return f"{test.num_pairs} pair{'s' if test.num_pairs != 1 else ''} of episodes"


def _certainty(result: Comparison) -> str:
    test = result.test
    if test.answer is Answer.CANNOT_TELL:
        return _difference(result)
    return f"this answer is wrong in at most {100 * test.error_rate:g} % of comparisons"


def _difference(result: Comparison) -> str:
    test = result.test
    if test.low is None or test.high is None:
        return f"B minus A is {_in_unit(result, test.difference)} so far"
    return f"B minus A is between {_in_unit(result, test.low)} and {_in_unit(result, test.high)}"


def _in_unit(result: Comparison, value: float, *, sign: bool = True) -> str:
    """A difference: in points of success, or in units of return."""
    text = f"{100 * value:.3g} points" if result.measure == "success" else f"{short(value)} of return"
    return f"+{text}" if sign and value > 0 else text


def _figures(result: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for column in ("", "weights", "success", "cycle time", "successes/min", "return"):
        table.add_column(column, no_wrap=True)
    for letter, name, figures in zip("AB", result.names, (result.a, result.b), strict=True):
        table.add_row(letter, name, *_cells(figures))
    return table


def _cells(figures: Performance) -> tuple[str, str, str, str]:
    cycle = figures.cycle_time_s
    return (
        str(figures.success) if figures.success else "-",
        f"{cycle.median:.1f} s ({cycle.low:.1f} to {cycle.high:.1f})" if cycle else "-",
        "-" if figures.per_minute is None else short(figures.per_minute),
        str(figures.returns) if figures.returns else "-",
    )


def _write(file: Path, result: Comparison) -> None:
    """The result and the scores of each episode."""
    pairs = [[_score(a), _score(b)] for a, b in result.scores]
    try:
        write_atomic(file, json.dumps({**result.to_json(), "pairs": pairs}, indent=2).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def _score(score: EpisodeScore) -> dict[str, Any]:
    return {"success": score.success, "duration_s": score.duration_s, "return": score.total_reward}
