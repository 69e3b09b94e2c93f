"""The output at the end of a run: success rates, costs, files and next commands."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from dovetail.cli._figures import evaluation_lines, rate_labels
from dovetail.cli._terminal import advice_block, console, duration
from dovetail.core.errors import DovetailError
from dovetail.core.figures import Performance
from dovetail.reports.report import REPORT, Report, read_report, write_report
from dovetail.runs.folder import RunFolder

__all__ = ["show", "write_stopped"]


def show(folder: RunFolder) -> None:
    """Write the report of a run that has ended, and print it."""
    with console.status("writing the report") as status:
        report = write_report(folder, on_step=status.update)
    parts: list[RenderableType] = [*_evaluations(report), Text(), _costs(report), Text()]
    if report.best:
        parts += [Text(f"{report.best}. Evaluate it again: {report.best.command}", style="yellow"), Text()]
    if report.advice:
        parts += [advice_block(report.advice, most=len(report.advice)), Text()]
    parts += [*_paths(folder, report), Text(), *_next(folder, report)]
    if console.is_terminal:
        title = Text(report.verdict, style="bold")
        console.print(Panel(Group(*parts), title=title, title_align="left", border_style="green", padding=(1, 1)))
        return
    console.print(Text(report.verdict))
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def write_stopped(folder: RunFolder) -> str | None:
    """Write the curve and the report of a stopped run, without the video; returns a line that names them.

    Without online episodes and evaluations there is nothing to draw. A report that cannot be written does not hide the stop.
    """
    try:
        so_far = read_report(folder)
        if not so_far.episodes and not so_far.evaluations:
            return None
        report = write_report(folder, with_video=False)
    except DovetailError as error:
        return f"no report: {error}"
    return f"results so far: {folder.path / REPORT}, {folder.path / str(report.figure)}"


def _evaluations(report: Report) -> list[Text]:
    labels = rate_labels(env_steps=report.env_steps)
    made = {label: report.evaluations[name] for name, label in labels.items() if name in report.evaluations}
    figure = "return" if made and all(one.success is None for one in made.values()) else "success"
    heading = Text(f"{figure} without help, with 95 % intervals", style="bright_black")
    after = {
        f"  of {name}": Performance.from_json(arm["success_after"])
        for name, arm in report.robots.items()
        if "success_after" in arm
    }
    return [heading, *evaluation_lines(made | (after if len(after) > 1 else {}))]


def _costs(report: Report) -> Text:
    rate = report.interventions_per_minute
    per_minute = f", {rate:.1f} per minute" if rate else ""
    interventions = _count(report.interventions, "intervention")
    figures = [_count(report.demos, "demonstration")]
    if report.env_steps:
        figures.append(f"{report.robot_minutes:.1f} robot minutes ({report.env_steps} steps)")
    if report.env_steps and report.has_operator:
        figures.append(f"{interventions} ({100 * report.human_share:.0f} % of the steps{per_minute})")
    figures.append(f"{report.updates} updates")
    if report.wall_s is not None:
        figures.append(f"{duration(report.wall_s)} of wall clock")
    return Text(", ".join(figures))


def _paths(folder: RunFolder, report: Report) -> list[Text]:
    names = [name for name in (REPORT, report.figure, report.video) if name]
    lines = [Text(str(folder.path / name), style="cyan") for name in names]
    if report.video_missing:
        lines.append(Text(f"no video: {report.video_missing}", style="yellow"))
    return lines


def _next(folder: RunFolder, report: Report) -> list[Text]:
    commands = [
        (f"dovetail episodes ls {folder.path}", "list the episodes"),
        (f"dovetail eval {folder.path} --seed 1", "evaluate on other resets"),
        (f"tensorboard --logdir {folder.logs}", "show all curves"),
    ]
    if report.has_pictures:
        commands.insert(1, (f"dovetail episodes video {folder.path} last", "watch the last episode"))
    width = max(len(command) for command, _ in commands)
    return [
        Text.assemble((f"{command:<{width}}", "bold"), (f"   {what}", "bright_black"))
        for command, what in commands
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
