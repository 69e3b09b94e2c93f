"""Start and resume runs: `run`, `train` and `collect`."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from dovetail.api.names import RUNS_DIR, check_name, find_run, new_name
from dovetail.api.opened_run import Run
from dovetail.api.readiness import console_is_needed, refuse_unready
from dovetail.api.viewing import with_viewer
from dovetail.config.changes import check_changes
from dovetail.config.load import Overrides, Source, load, plain_overrides
from dovetail.config.schema import RunConfig
from dovetail.core.errors import DovetailError, Interrupted, RunFolderError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.live.run_stop import RunStop
from dovetail.runs.folder import RunFolder

if TYPE_CHECKING:  # they load torch
    from dovetail.live.link import LiveLink
    from dovetail.runs.run import RunPhases
    from dovetail.runs.status import StatusListener
    from dovetail.runtime.ray.roles.on_policy import RayOnPolicyRun

__all__ = [
    "Command",
    "Interrupted",
    "RunOptions",
    "collect",
    "execute",
    "following_run",
    "load_config",
    "locked_run",
    "run",
    "train",
]

Command = Literal["run", "train", "collect"]
Sources = Source | Sequence[Source]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of `run`, `train` and `collect`."""

    name: str | None
    """Name of the new run. Default: the recipe and the time."""
    gym: str | None
    """Id of a Gymnasium environment: settings are chosen for it, which sources and overrides can change."""
    resume: Run | str | Path | None
    """Continue this run instead of starting one; give no sources then, and only overrides that may change."""
    runs_dir: Path | str
    """The folder of all runs. Default: `runs`."""
    viewer: bool
    """Open the simulator's window."""
    realtime: bool
    """Run the simulation at the speed of the real clock."""
    on_progress: StatusListener
    """Called in this thread, often, with the run's `RunStatus`: phase, episodes, success rate, ..."""
    should_stop: Callable[[], bool]
    """Polled often. Once it returns True, the run saves its state and raises `Interrupted`."""


def load_config(sources: Sources, overrides: Overrides = ()) -> RunConfig:
    """Load a recipe, a file or several of them, merged in order, and validate the result.

    load_config("peg-insertion", {"run.seed": 3})
    load_config(["peg-insertion", "lab.yaml"], ["run.seed=3"])
    """
    return load(_listed(sources), overrides)


def run(sources: Sources = (), overrides: Overrides = (), **options: Unpack[RunOptions]) -> Run:
    """Learn a task online: demonstrations, behavior cloning, online learning, an evaluation and a report."""
    return _launch("run", sources, overrides, options)


def train(
    sources: Sources = (), overrides: Overrides = (), *, evaluate: bool = True, **options: Unpack[RunOptions]
) -> Run:
    """Learn offline from demonstrations: those of the run to `resume`, or `run.demos` new ones of the task's expert."""
    return _launch("train", sources, overrides, options, evaluate=evaluate)


def collect(sources: Sources = (), overrides: Overrides = (), **options: Unpack[RunOptions]) -> Run:
    """Record `run.demos` demonstrations. `run(resume=NAME)` learns from them later."""
    return _launch("collect", sources, overrides, options)


def _launch(
    command: Command, sources: Sources, overrides: Overrides, options: RunOptions, *, evaluate: bool = True
) -> Run:
    with locked_run(_listed(sources), overrides, options) as folder, RunStop.create(folder.path) as stop:
        if command != "train" and console_is_needed(folder.config):
            message = f"the operator is a person at the console. Open it: dovetail console {folder.path}"
            warnings.warn(message, UserWarning, stacklevel=4)
        execute(command, folder, options, stop=stop, evaluate=evaluate)
    if command == "run" and (following := following_run(folder, options)) is not None:
        return _launch(command, (), (), {**options, "resume": following, "name": None, "gym": None})
    if command == "run" or (command == "train" and evaluate):
        from dovetail.reports.report import write_report

        write_report(folder)
    return Run(folder)


def following_run(
    folder: RunFolder, options: RunOptions, *, announce: Callable[[str], None] = lambda line: None
) -> Path | None:
    """After a round of a run with `run.distill_every`: distill it, and return the run that goes on. None: it is over."""
    if folder.config.run.distill_every is None:
        return None
    from dovetail.api.rounds import next_round

    should_stop = options.get("should_stop", lambda: False)
    return next_round(RunFolder.open(folder.path), should_stop=should_stop, announce=announce)


@contextmanager
def locked_run(
    sources: Sequence[Source],
    overrides: Overrides,
    options: RunOptions,
    *,
    announce: Callable[[str], None] = lambda line: None,
) -> Iterator[RunFolder]:
    """The locked folder of a new run, or of the run to resume. An error before any work removes a new folder."""
    resumed = options.get("resume") is not None
    if options.get("gym") is not None:
        sources = _chosen_sources(sources, overrides, options, announce=announce)
    folder = _resumed(sources, overrides, options) if resumed else _created(sources, overrides, options)
    try:
        folder.lock()
        if resumed and overrides and not sources:
            folder.change(plain_overrides(overrides))
        folder.config = _viewed(folder.config, options)
        yield folder
    except DovetailError:
        if not resumed and not folder.holds_work:
            shutil.rmtree(folder.path)
        raise
    finally:
        folder.unlock()


def execute(
    command: Command,
    folder: RunFolder,
    options: RunOptions,
    *,
    stop: RunStop,
    evaluate: bool = True,
    with_console: bool = False,
    make_link: Callable[[RobotSpec], LiveLink] | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> None:
    """Do the work of a command in a locked folder. This is the only place that knows the run classes.

    `stop` is the emergency stop of all arms, which this process leads. `announce` prints a line in the terminal. A run with
    a section `improve` is the middle of a loop: see `dovetail.api.improvement`.
    """
    work = partial(
        _execute,
        command,
        folder,
        options,
        stop=stop,
        evaluate=evaluate,
        with_console=with_console,
        make_link=make_link,
        announce=announce,
    )
    if command == "run" and folder.config.improve is not None:
        from dovetail.api.improvement import Improvement

        Improvement(folder, options, announce=announce).run(work)
    else:
        work()


def _execute(
    command: Command,
    folder: RunFolder,
    options: RunOptions,
    *,
    stop: RunStop,
    evaluate: bool,
    with_console: bool,
    make_link: Callable[[RobotSpec], LiveLink] | None,
    announce: Callable[[str], None],
) -> None:
    import torch

    from dovetail.learn.memory import keep_freed_memory
    from dovetail.live.link import LiveLink
    from dovetail.runs.assembly.build import is_on_policy
    from dovetail.runs.status import ignore_status
    from dovetail.runtime.inline import InlineRun

    torch.set_flush_denormal(True)
    keep_freed_memory()
    watch = options.get("on_progress", ignore_status)
    asked_to_stop = options.get("should_stop", lambda: False)
    link = make_link or (lambda robot: LiveLink(folder.path, robot=robot, stop=stop, announce=announce))

    def should_stop() -> bool:
        if not stop.ending and asked_to_stop():
            stop.request_end("should_stop")  # its arms stop at once, wherever they are
        return stop.ending

    runner: RunPhases | RayOnPolicyRun
    if command == "train":  # offline learning is always inline
        InlineRun(folder, on_status=watch, should_stop=should_stop, live=link).train(evaluate=evaluate)
        return
    if folder.config.runtime == "inline":
        runner = InlineRun(folder, on_status=watch, should_stop=should_stop, live=link)
    elif is_on_policy(folder.config):
        from dovetail.runtime.ray.roles.on_policy import RayOnPolicyRun

        runner = RayOnPolicyRun(folder, on_status=watch, should_stop=should_stop, live=with_console, stop=stop)
    else:
        from dovetail.runtime.ray.driver.run import RayRun

        runner = RayRun(
            folder, on_status=watch, should_stop=should_stop, live=with_console, announce=announce, stop=stop
        )
    if command == "run":
        runner.run()
        return
    try:
        runner.collect(folder.config.run.demos)
    finally:
        runner.close()


def _chosen_sources(
    sources: Sequence[Source], overrides: Overrides, options: RunOptions, *, announce: Callable[[str], None]
) -> Sequence[Source]:
    """The settings that are chosen for a Gymnasium environment, followed by the given sources."""
    from dovetail.runs.assembly.gym_choice import choose

    if options.get("resume") is not None:
        raise UsageError("a resumed run knows its environment: leave out --gym, or start a new run")
    env_id = options["gym"]
    assert env_id is not None
    choice = choose(env_id, sources, overrides)
    chosen = [choice.source, *sources]
    for line in choice.lines(load(chosen, overrides)):
        announce(line)
    return chosen


def _created(sources: Sequence[Source], overrides: Overrides, options: RunOptions) -> RunFolder:
    loaded = load(sources, overrides)  # before torch, so that a wrong setting is refused at once
    refuse_unready(loaded)

    from dovetail.api.checks import check_fits
    from dovetail.api.improvement import with_served_base
    from dovetail.runs.assembly.fleet import with_embodiments

    config = with_embodiments(loaded)
    runs_dir, name = Path(options.get("runs_dir", RUNS_DIR)), options.get("name")
    first = sources[0]
    name = check_name(name) if name is not None else new_name(_stem(first, options.get("gym")), runs_dir)
    path = runs_dir / name
    if path.exists():
        raise RunFolderError(f"run folder {path} exists already: choose another --name, or use --resume")
    config = with_served_base(config, path)
    check_fits(_viewed(config, options))
    return RunFolder.create(path, config)


def _stem(first: Source, env_id: str | None) -> str:
    """What a new run is named after."""
    if env_id is not None:
        return env_id.rpartition(":")[2]
    return "run" if isinstance(first, Mapping) else str(first)


def _resumed(sources: Sequence[Source], overrides: Overrides, options: RunOptions) -> RunFolder:
    target = options["resume"]
    assert target is not None
    path = target.path if isinstance(target, Run) else find_run(target, Path(options.get("runs_dir", RUNS_DIR)))
    if not sources:
        check_changes(plain_overrides(overrides))
        folder = RunFolder.open(path)
        refuse_unready(folder.config)
        return folder
    from dovetail.api.improvement import with_served_base
    from dovetail.runs.assembly.fleet import with_embodiments

    return RunFolder.open(path, expect=with_served_base(with_embodiments(load(sources, overrides)), path))


def _viewed(config: RunConfig, options: RunOptions) -> RunConfig:
    return with_viewer(config, viewer=options.get("viewer", False), realtime=options.get("realtime", False))


def _listed(sources: Sources) -> Sequence[Source]:
    return [sources] if isinstance(sources, str | Path | Mapping) else sources
