"""`dovetail doctor`: check the machine and a recipe or a run, one line per finding."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from dovetail.api.names import find_run, list_runs
from dovetail.api.readiness import (
    Finding,
    RenderingCheck,
    camera_findings,
    camera_names,
    machine_findings,
    people_findings,
    robot_findings,
    service_findings,
)
from dovetail.cli._gym import gym_sources
from dovetail.cli._terminal import console, say, split_arguments
from dovetail.config.load import SAVED_NAME, Source, load, load_saved, recipes
from dovetail.config.plugins import installed_plugins
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresImages
from dovetail.core.errors import ConfigError, DovetailError

__all__ = ["doctor"]


def doctor(
    arguments: Sequence[str], *, runs_dir: Path, gym: str | None = None, console_port: int | None = None
) -> int:
    given, overrides = split_arguments(arguments)
    sources = gym_sources(gym, given, overrides)
    if overrides and not sources:
        raise ConfigError("name a recipe or a config file; `dovetail recipes` lists the recipes")
    config = _config(sources, overrides, runs_dir) if sources else None
    num_wrong = 0
    for finding in _findings(config, runs_dir, console_port):
        num_wrong += finding.needed and not finding.ok
        mark = ("✓", "green") if finding.ok else ("✗", "red" if finding.needed else "yellow")
        console.print(Text.assemble(mark, f" {finding.name:<16}", finding.line), soft_wrap=True)
    if num_wrong:
        say(f"{num_wrong} {'thing is' if num_wrong == 1 else 'things are'} missing")
    return 1 if num_wrong else 0


def _config(sources: Sequence[Source], overrides: Sequence[str], runs_dir: Path) -> RunConfig:
    """The config of recipes and files, or of a run by name or path. A recipe or file of the same name comes first."""
    if len(sources) == 1 and isinstance(sources[0], str) and _is_run(sources[0], runs_dir):
        return load_saved(find_run(sources[0], runs_dir), overrides).config
    return load(sources, overrides)


def _is_run(name: str, runs_dir: Path) -> bool:
    if Path(name).is_file() or name in {recipe.name for recipe in recipes()}:
        return False
    return name in list_runs(runs_dir) or (Path(name) / SAVED_NAME).is_file()


def _findings(config: RunConfig | None, runs_dir: Path, console_port: int | None) -> Iterator[Finding]:
    # Without a recipe it is needed for videos of reports; with one, only for its camera images.
    rendering = RenderingCheck(  # first, because it works while the others do
        needed=config is None
        or (isinstance(config.robot.config, ConfiguresImages) and bool(config.robot.config.images))
    )
    yield from machine_findings(config, runs_dir)
    if config is None:
        yield from _recipes()
        yield from _plugins()
    else:
        yield from people_findings(config)
        yield from service_findings(config, console_port=console_port)
        yield from robot_findings(config)
        cameras = _measured_cameras(config)
        yield from cameras
        yield from _fits(config, known={finding.detail for finding in cameras})
    yield from _processors()
    yield rendering.finish()


def _processors() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding(name="cpu", ok=True, detail=f"{cores} cores, torch would use {torch.get_num_threads()} threads")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; small policies do not need one"
    yield Finding(name="gpu", ok=True, detail=gpu)


def _recipes() -> Iterator[Finding]:
    fine = []
    for recipe in recipes():
        try:
            load([recipe.name])
            fine.append(recipe.name)
        except DovetailError as error:
            yield Finding(name=f"recipe {recipe.name}", ok=False, detail=str(error))
    yield Finding(name="recipes", ok=True, detail=", ".join(fine))


def _plugins() -> Iterator[Finding]:
    """Plugins of other packages. They are found, not imported, which could take long; `dovetail plugins` imports them."""
    fine = []
    for plugin in installed_plugins():
        module = plugin.target.partition(":")[0]
        try:
            found = importlib.util.find_spec(module) is not None
        except Exception:  # a foreign package may raise anything
            found = False
        if found:
            fine.append(f"{plugin.kind} {plugin.name}")
        else:
            detail = f"{plugin.kind} '{plugin.name}' of {plugin.origin} has no module '{module}'"
            yield Finding(name="plugin", ok=False, detail=detail, remedy="Reinstall the package", needed=False)
    yield Finding(name="plugins", ok=True, detail=", ".join(fine) or "none of other packages")


def _measured_cameras(config: RunConfig) -> list[Finding]:
    names = camera_names(config)
    if not names:
        return []
    with console.status(f"measuring the cameras {', '.join(names)}: some seconds"):
        return list(camera_findings(config))


def _fits(config: RunConfig, *, known: Collection[str] = ()) -> Iterator[Finding]:
    """Build all parts of the recipe and check that they fit. `known`: problems that are reported already."""
    from dovetail.api.checks import fit_problems
    from dovetail.runs.assembly.fleet import with_embodiments

    task = config.task.type if config.task else "its own task"
    what = f"robot {config.robot.type}, {task}, policy {config.policy.type}, algorithm {config.algorithm.type}"
    try:
        problems = fit_problems(with_embodiments(config))
    except DovetailError as error:
        problems = [error]
    problems = [problem for problem in problems if str(problem) not in known]
    for problem in problems:
        yield Finding(name="recipe", ok=False, detail=str(problem))
    if not problems:
        yield Finding(name="recipe", ok=True, detail=f"{what} fit each other")
