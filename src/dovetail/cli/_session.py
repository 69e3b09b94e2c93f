"""`run`, `train` and `collect` in a terminal: progress, the console, the keyboard, and the report at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail.api.launch import Command, RunOptions, execute, following_run, locked_run
from dovetail.api.names import RUNS_DIR
from dovetail.api.readiness import asks_person, console_is_needed, label_help
from dovetail.cli import _report
from dovetail.cli._console_process import ConsoleProcess
from dovetail.cli._improvement import show_improvement
from dovetail.cli._live import view_for
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say, split_arguments
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.human.keyboard import ACKNOWLEDGE_KEY, KeyboardConfig, TerminalKeys, key_help
from dovetail.human.mailbox import Mailbox
from dovetail.labels.queue import LabelQueue
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.arms import has_operator
from dovetail.runs.assembly.operators import console_operator
from dovetail.runs.folder import RunFolder

__all__ = ["STOPPED", "Request", "start"]

STOPPED = 130  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of the command line."""

    arguments: tuple[str, ...]
    name: str | None
    resume: bool
    runs_dir: Path
    seed: int | None
    viewer: bool
    realtime: bool
    quiet: bool
    gym: str | None = None
    console: bool | None = None  # None: if the operator drives from it
    console_port: int | None = None


def start(command: Command, request: Request, *, overrides: tuple[str, ...] = (), evaluate: bool = True) -> int:
    sources, given = split_arguments(request.arguments)
    given += overrides
    if request.seed is not None:
        given.append(f"run.seed={request.seed}")
    options: RunOptions = {"runs_dir": request.runs_dir, "viewer": request.viewer, "realtime": request.realtime}
    options["gym"] = request.gym
    if not request.resume:
        options["name"] = request.name
    elif request.name is None and not sources:
        raise UsageError(f"name the run to continue: dovetail {command} --resume NAME")
    else:
        options["resume"] = sources.pop(0) if request.name is None else request.name
    with StopFlag() as flag:
        options["should_stop"] = flag
        with (
            locked_run(sources, given, options, announce=_announcer(request)) as folder,
            RunStop.create(folder.path) as stop,
            flag.connected(stop),
        ):
            try:
                with_console = command != "train" and _with_console(folder, request)
                # offline learning needs no person
                needs_keys = command != "train" or evaluate or sys.stdin.isatty()
                with (
                    _operator_links(
                        folder, request, stop, with_console=with_console, needs_keys=needs_keys
                    ) as link,
                    view_for(console, quiet=request.quiet, has_operator=has_operator(folder.config)) as view,
                ):
                    options["on_progress"] = view
                    execute(
                        command,
                        folder,
                        options,
                        stop=stop,
                        evaluate=evaluate,
                        with_console=with_console,
                        make_link=link,
                        announce=say,
                    )
            except Interrupted:
                if command != "collect" and (line := _report.write_stopped(folder)):
                    say(line)
                say(f"stopped; continue with: dovetail {command} --resume {_shown_name(folder, request)}")
                return STOPPED
        try:
            following = following_run(folder, options, announce=say) if command == "run" else None
        except Interrupted:
            say(f"stopped; continue with: dovetail {command} --resume {_shown_name(folder, request)}")
            return STOPPED
    if following is not None:
        again = replace(request, arguments=(), name=str(following), resume=True, seed=None, gym=None)
        return start(command, again)
    _finish(command, folder, evaluate=evaluate)
    _say_unlabeled(folder, name=_shown_name(folder, request))
    return 0


def _announcer(request: Request) -> Callable[[str], None]:
    return (lambda line: None) if request.quiet else say


def _with_console(folder: RunFolder, request: Request) -> bool:
    """Whether to start the console. If a person needs one that this run does not start, say how to open it."""
    needed, name = console_is_needed(folder.config), _shown_name(folder, request)
    starts = needed if request.console is None else request.console
    if needed and not starts:
        say(f"the operator is a person at the console. Open it: dovetail console {name}")
    if asks_person(folder.config) and not starts:
        say(f"a person labels the episodes: {label_help(name)}")
    return starts


def _finish(command: Command, folder: RunFolder, *, evaluate: bool) -> None:
    if command == "collect":
        say(f"{folder.config.run.demos} demonstrations in {folder.path}")
        say(
            f"learn from them: dovetail run --resume {folder.path}; without the robot: "
            f"dovetail train --resume {folder.path} --no-eval"
        )
    elif command == "train" and not evaluate:
        say(f"trained weights in {folder.weights}")
        say(f"evaluate them: dovetail eval {folder.path}")
    else:
        _report.show(folder)
        show_improvement(folder)


@contextmanager
def _operator_links(
    folder: RunFolder, request: Request, stop: RunStop, *, with_console: bool, needs_keys: bool
) -> Iterator[Callable[[RobotSpec], LiveLink]]:
    """Start the console or the terminal keyboard if requested; yields what makes the run's link to them."""
    driver = console_operator(folder.config.operator)
    keyboard = driver is not None and driver.type == "keyboard" and needs_keys
    if keyboard and with_console:
        raise UsageError("operator 'keyboard' and --console cannot drive one arm together: use only one of them")
    if keyboard and folder.config.runtime == "ray":  # the arm is in another process, perhaps on another machine
        raise UsageError("operator 'keyboard' needs runtime=inline; with runtime=ray, drive from the console")
    made: list[tuple[LiveLink, RobotSpec]] = []
    config = driver.config if driver is not None and keyboard else None
    key = ACKNOWLEDGE_KEY if keyboard else None

    def make(robot: RobotSpec) -> LiveLink:
        link = LiveLink(
            folder.path, robot=robot, stop=stop, waits=with_console or keyboard, announce=say, acknowledge_key=key
        )
        if isinstance(config, KeyboardConfig) and not made:
            say(key_help(robot, config))
        made.append((link, robot))
        return link

    def mailbox() -> tuple[Mailbox, RobotSpec] | None:
        return (made[0][0].mailbox, made[0][1]) if made and made[0][0].is_open else None

    with ExitStack() as stack:
        if isinstance(config, KeyboardConfig):
            stack.enter_context(
                TerminalKeys(mailbox, config=config, on_emergency=lambda: stop.press("keyboard"), announce=say)
            )
        if with_console:
            stack.enter_context(ConsoleProcess(folder.path, port=request.console_port))
        yield make


def _say_unlabeled(folder: RunFolder, *, name: str) -> None:
    why = Counter(str(reason) for item in LabelQueue(folder.label_queue).waiting() for reason in item.reasons[:1])
    if why:
        reasons = ", ".join(f"{count} {reason}" for reason, count in why.most_common())
        say(f"{why.total()} episodes still wait for labels ({reasons}): dovetail console {name}")


def _shown_name(folder: RunFolder, request: Request) -> str:
    """The name of the run, or its path if it is not in the default folder."""
    return folder.path.name if folder.path.parent == RUNS_DIR == request.runs_dir else str(folder.path)
