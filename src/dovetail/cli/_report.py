"""The output at the end of a run: success rates, costs, files and next commands."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from dovetail.cli._terminal import advice_block, console, duration, rate_line
from dovetail.core.stats import Rate
from dovetail.reports.report import REPORT, Report, write_report
from dovetail.runs.folder import RunFolder

__all__ = ["show"]


def show(folder: RunFolder) -> None:
    """Write the report of a run that has ended, and print it."""
    with console.status("writing the report") as status:
        report = write_report(folder, on_step=status.update)
    parts: list[RenderableType] = [*_rates(report), Text(), _costs(report), Text()]
    if report.advice:
        parts += [advice_block(report.advice, most=len(report.advice)), Text()]
    parts += [*_paths(folder, report), Text(), *_next(folder)]
    if console.is_terminal:
        title = Text(report.verdict, style="bold")
        console.print(Panel(Group(*parts), title=title, title_align="left", border_style="green", padding=(1, 1)))
        return
    console.print(Text(report.verdict))
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _rates(report: Report) -> list[Text]:
    rates = (
        ("untrained", report.untrained),
        ("behavior cloning", report.success_before),
        ("after online learning", report.success_after),
    )
    heading = Text("success without help, with 95 % intervals", style="bright_black")
    after = {
        f"  of {name}": Rate(
            successes=arm["success_after"]["successes"], episodes=arm["success_after"]["episodes"]
        )
        for name, arm in report.robots.items()
        if "success_after" in arm
    }
    each = after.items() if len(after) > 1 else ()
    return [heading, *(rate_line(label, rate) for label, rate in (*rates, *each) if rate is not None)]


def _costs(report: Report) -> Text:
    figures = [
        f"{report.demos} demonstrations",
        f"{report.robot_minutes:.1f} robot minutes ({report.env_steps} steps)",
        f"{_count(report.interventions, 'intervention')} ({100 * report.human_share:.0f} % of the steps)",
        f"{report.updates} updates",
    ]
    if report.wall_s is not None:
        figures.append(f"{duration(report.wall_s)} of wall clock")
    return Text(", ".join(figures))


def _paths(folder: RunFolder, report: Report) -> list[Text]:
    names = [name for name in (REPORT, report.figure, report.video) if name]
    lines = [Text(str(folder.path / name), style="cyan") for name in names]
    if report.video_missing:
        lines.append(Text(f"no video: {report.video_missing}", style="yellow"))
    return lines


def _next(folder: RunFolder) -> list[Text]:
    commands = (
        (f"dovetail episodes ls {folder.path}", "list the episodes"),
        (f"dovetail episodes video {folder.path} last", "watch the last episode"),
        (f"dovetail eval {folder.path} --seed 1", "evaluate on other resets"),
        (f"tensorboard --logdir {folder.logs}", "show all curves"),
    )
    width = max(len(command) for command, _ in commands)
    return [
        Text.assemble((f"{command:<{width}}", "bold"), (f"   {what}", "bright_black"))
        for command, what in commands
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
