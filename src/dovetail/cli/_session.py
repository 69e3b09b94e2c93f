"""A run from its command line to its report."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dovetail.cli import _report
from dovetail.cli._console_process import ConsoleProcess
from dovetail.cli._live import view_for
from dovetail.cli._runs import check_name, find_run, new_name, split_arguments
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.errors import DovetailError, RobotFault, RunFolderError, SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.streams import stream
from dovetail.human.keyboard import HELP, TerminalKeys
from dovetail.human.mailbox import Mailbox
from dovetail.labels.queue import LabelQueue
from dovetail.learn.batches import batch_arrays
from dovetail.learn.memory import keep_freed_memory
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.arms import arm_configs, arm_name, kinds
from dovetail.runs.assembly.build import Station, build_station
from dovetail.runs.assembly.cell import demonstrates
from dovetail.runs.assembly.fleet import build_band, completed
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import Watcher
from dovetail.runtime.inline import InlineRun, Interrupted
from dovetail.runtime.onpolicy.training import check_practice, is_on_policy
from dovetail.runtime.ranks import check_ranks

if TYPE_CHECKING:  # Ray takes a second to import
    from dovetail.runtime.ray.driver.run import RayRun
    from dovetail.runtime.ray.roles.on_policy import RayPractice

__all__ = ["Request", "check_fits", "collect", "run", "shown", "train"]

STOPPED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    arguments: tuple[str, ...]
    name: str | None
    resume: bool
    runs_dir: Path
    seed: int | None
    viewer: bool
    realtime: bool
    quiet: bool
    console: bool = False
    console_port: int | None = None


def run(request: Request) -> int:
    return _work(request, lambda inline, _: inline.run(), _report.show, again="run")


def train(request: Request, *, evaluate: bool) -> int:
    finish = _report.show if evaluate else _say_trained
    return _work(request, lambda inline, _: _train(inline, evaluate=evaluate), finish, again="train")


def _train(inline: InlineRun | RayRun | RayPractice, *, evaluate: bool) -> None:
    assert isinstance(inline, InlineRun)  # see `_runner`
    inline.train(evaluate=evaluate)


def _say_trained(folder: RunFolder) -> None:
    say(f"trained weights in {folder.weights}")
    say(f"see what they can do: dovetail eval {folder.path}")


def collect(request: Request, *, num_demos: int | None) -> int:
    overrides = () if num_demos is None else (f"run.demos={num_demos}",)
    return _work(request, _collect, _say_collected, again="collect", overrides=overrides)


def _collect(inline: InlineRun | RayRun | RayPractice, config: RunConfig) -> None:
    try:
        inline.collect(config.run.demos)
    finally:
        inline.close()


def _say_collected(folder: RunFolder) -> None:
    say(f"{folder.config.run.demos} demonstrations in {folder.path}")
    say(f"learn from them: dovetail run --resume {folder.path}")


def _work(
    request: Request,
    work: Callable[[InlineRun | RayRun | RayPractice, RunConfig], None],
    finish: Callable[[RunFolder], None],
    *,
    again: str,
    overrides: tuple[str, ...] = (),
) -> int:
    torch.set_flush_denormal(True)  # of the whole process, so it is for a command to say, not for the library
    keep_freed_memory()
    with StopFlag() as stop:
        folder = _open_folder(request, overrides)
        try:
            folder.lock()
            folder.config = shown(folder.config, viewer=request.viewer, realtime=request.realtime)
            with (
                _desk_for(folder, request) as link,
                view_for(console, quiet=request.quiet) as watch,
            ):
                work(_runner(folder, request, again, watch=watch, should_stop=stop, live=link), folder.config)
        except Interrupted:
            say(f"stopped; continue with: dovetail {again} --resume {_called(folder, request)}")
            return STOPPED
        except DovetailError:
            if not request.resume and not folder.holds_work:
                shutil.rmtree(folder.path)  # ours, made a moment ago: a refusal leaves nothing behind
            raise
        finally:
            folder.unlock()
    finish(folder)
    _say_waiting(folder, called=_called(folder, request))
    return 0


def _runner(
    folder: RunFolder,
    request: Request,
    again: str,
    *,
    watch: Watcher,
    should_stop: StopFlag,
    live: Callable[[RobotSpec], LiveLink],
) -> InlineRun | RayRun | RayPractice:
    """Who does it. What is learned offline is one thing at a time."""
    if folder.config.runtime == "inline" or again == "train":
        return InlineRun(folder, watch=watch, should_stop=should_stop, live=live)
    if is_on_policy(folder.config):
        from dovetail.runtime.ray.roles.on_policy import RayPractice

        return RayPractice(folder, watch=watch, should_stop=should_stop, live=request.console)
    from dovetail.runtime.ray.driver.run import RayRun

    return RayRun(folder, watch=watch, should_stop=should_stop, live=request.console, announce=say)


@contextmanager
def _desk_for(folder: RunFolder, request: Request) -> Iterator[Callable[[RobotSpec], LiveLink]]:
    """Makes the run's link to whoever watches, and has the console or the terminal's keys where they are asked for."""
    keyboard = folder.config.operator.type == "keyboard"
    if keyboard and request.console:
        raise UsageError("operator 'keyboard' and --console drive through one mailbox: leave one of them out")
    if (
        keyboard and folder.config.runtime == "ray"
    ):  # its mailbox is the arm's, in another process, maybe elsewhere
        raise UsageError("operator 'keyboard' is for runtime=inline: with runtime=ray, drive from the console")
    made: list[tuple[LiveLink, RobotSpec]] = []

    def make(robot: RobotSpec) -> LiveLink:
        link = LiveLink(folder.path, robot=robot, waits=request.console or keyboard, announce=say)
        made.append((link, robot))
        return link

    def mailbox() -> tuple[Mailbox, RobotSpec] | None:
        return (made[0][0].mailbox, made[0][1]) if made and made[0][0].is_open else None

    with ExitStack() as stack:
        if keyboard:
            stack.enter_context(TerminalKeys(mailbox))
            say(HELP)
        if request.console:
            stack.enter_context(ConsoleProcess(folder.path, port=request.console_port))
        yield make


def _say_waiting(folder: RunFolder, *, called: str) -> None:
    why = Counter(str(reason) for item in LabelQueue(folder.label_queue).waiting() for reason in item.reasons[:1])
    if why:
        parts = ", ".join(f"{count} {reason}" for reason, count in why.most_common())
        say(f"{why.total()} episodes still wait for labels ({parts}): dovetail console {called}")


def _called(folder: RunFolder, request: Request) -> str:
    """How to name this run from where the person stands."""
    default = Path("runs")
    return folder.path.name if folder.path.parent == default == request.runs_dir else str(folder.path)


def _open_folder(request: Request, extra: tuple[str, ...]) -> RunFolder:
    sources, overrides = split_arguments(request.arguments)
    overrides += extra
    if request.seed is not None:
        overrides.append(f"run.seed={request.seed}")
    if request.resume:
        return _resume(request, sources, overrides)
    config = completed(load(sources, overrides))
    name = check_name(request.name) if request.name is not None else new_name(sources, request.runs_dir)
    path = request.runs_dir / name
    if path.exists():
        raise RunFolderError(f"run folder {path} exists already: choose another --name, or use --resume")
    check_fits(shown(config, viewer=request.viewer, realtime=request.realtime))
    return RunFolder.create(path, config)


def _resume(request: Request, sources: list[str], overrides: list[str]) -> RunFolder:
    if request.name is None:
        if not sources:
            raise UsageError("name the run to go on with: dovetail run --resume NAME")
        target, sources = sources[0], sources[1:]
    else:
        target = request.name
    path = find_run(target, request.runs_dir)
    if overrides and not sources:
        raise UsageError(f"a resumed run keeps its config: leave out {' '.join(overrides)}, or start a new run")
    return RunFolder.open(path, expect=completed(load(sources, overrides)) if sources else None)


def shown(config: RunConfig, *, viewer: bool = False, realtime: bool = False) -> RunConfig:
    """The same run, watched: what is saved, and its hash, do not change with who looks on."""
    wanted = {name: True for name, on in (("viewer", viewer), ("realtime", realtime)) if on}
    for name in wanted:
        if name not in type(config.robot.config).model_fields:
            raise UsageError(f"--{name} is for simulated robots, but this one is '{config.robot.type}'")
    if not wanted:
        return config
    robot = replace(config.robot, config=config.robot.config.model_copy(update=wanted))
    return config.model_copy(update={"robot": robot})


def check_fits(config: RunConfig) -> None:
    """Build everything once and throw it away, so that a refusal comes before a run folder does."""
    if config.runtime == "inline":
        _check_fits(build_station(config))
        return
    band = build_band(config)
    band.trainable()  # one for all of them
    _check_fits(band.station)
    arms = arm_configs(config)
    for first, *_ in kinds(config)[1:]:
        try:
            _check_fits(build_station(arms[first], name=arm_name(config, first)))
        except (UsageError, SpecMismatch) as problem:
            raise type(problem)(f"robot '{first}': {problem}") from problem


def _check_fits(station: Station) -> None:
    config = station.config
    try:
        policy = station.trainable()
        station.operator()
        station.check_actor(policy.spec)
        panel = station.panel()
        if config.run.demos and not demonstrates(config.operator):
            station.task.expert()  # who is to give them
        algorithm = station.algorithm(policy)
        if isinstance(algorithm, OnPolicyAlgorithm):
            check_practice(config)
        check_ranks(config, algorithm)
        batch_arrays(algorithm.wants, station.robot.spec)  # what the robot cannot give is refused
        if any(spec.is_image for spec in station.robot.spec.observation.values()):
            _take_a_picture(station)
        if panel.looks_at_metrics:
            panel.check_metrics(_metrics(station))
    finally:
        station.close()


def _take_a_picture(station: Station) -> None:
    """The first one is where a missing GL shows."""
    try:
        station.task.reset(station.robot, rng=stream(station.config.run.seed, "check"))
        station.robot.observe()
    except RobotFault as fault:  # the filter's fault says less than what caused it
        raise fault.__cause__ if isinstance(fault.__cause__, DovetailError) else fault from None


def _metrics(station: Station) -> Collection[str]:
    """What the task measures, told from a first look."""
    station.task.reset(station.robot, rng=stream(station.config.run.seed, "check"))
    return station.task.judge(station.robot, station.robot.observe(), num_steps=1).metrics.keys()
