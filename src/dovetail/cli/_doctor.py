"""`dovetail doctor`: check the machine and a recipe, one line per check."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from rich.text import Text

from dovetail.cli._terminal import console, say, split_arguments
from dovetail.config.load import load, recipes
from dovetail.config.plugins import list_plugins
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresImages
from dovetail.core.errors import ConfigError, DovetailError

__all__ = ["Check", "doctor"]

GL_TIMEOUT_S = 60.0
MIN_FREE_GB = 2.0
_PICTURE = """
from dovetail.robots.sim import SimRobot, SimRobotConfig
robot = SimRobot(SimRobotConfig(images=("front",), image_size=(32, 32)))
picture = robot.observe().values["front"]
robot.close()
assert picture.max() > picture.min(), "the image is blank"
"""
_HOW_TO_GL = "install EGL (apt-get install libegl1 libgl1-mesa-dri), and leave MUJOCO_GL unset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check. Only a `needed` check makes the command fail."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True


def doctor(arguments: Sequence[str], *, runs_dir: Path) -> int:
    sources, overrides = split_arguments(arguments)
    if overrides and not sources:
        raise ConfigError("name a recipe or a config file; `dovetail recipes` lists the recipes")
    config = load(sources, overrides) if sources else None
    num_wrong = 0
    for check in _checks(config, runs_dir):
        num_wrong += check.needed and not check.ok
        mark = ("✓", "green") if check.ok else ("✗", "red" if check.needed else "yellow")
        line = Text.assemble(mark, f" {check.name:<16}", check.detail)
        if not check.ok and check.remedy:
            line.append(f": {check.remedy}" + ("" if check.needed else " (only images and videos need it)"))
        console.print(line, soft_wrap=True)
    if num_wrong:
        say(f"{num_wrong} {'thing is' if num_wrong == 1 else 'things are'} missing")
    return 1 if num_wrong else 0


def _checks(config: RunConfig | None, runs_dir: Path) -> Iterator[Check]:
    yield _python()
    yield from _packages()
    yield from _processors()
    # Without a recipe it is needed for videos of reports; with one, only for its camera images.
    yield _rendering(
        needed=config is None
        or (isinstance(config.robot.config, ConfiguresImages) and bool(config.robot.config.images))
    )
    yield _runs_folder(runs_dir)
    yield _disk(runs_dir)
    if config is not None:
        yield from _recipe(config)
    else:
        yield from _recipes()
        yield from _plugins()


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check(name="python", ok=ok, detail=platform.python_version(), remedy="Dovetail needs 3.11 or newer")


def _packages() -> Iterator[Check]:
    """Compare the installed packages with the required versions."""
    fine = []
    for text in importlib.metadata.requires("dovetail") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name=wanted.name, ok=False, detail="is not installed", remedy=f"pip install '{wanted}'")
            continue
        if wanted.specifier.contains(version, prereleases=True):
            fine.append(f"{wanted.name} {version}")
        else:
            detail = f"{version}, but we need {wanted.specifier}"
            yield Check(name=wanted.name, ok=False, detail=detail, remedy=f"pip install '{wanted}'")
    yield Check(name="packages", ok=True, detail=", ".join(fine))


def _processors() -> Iterator[Check]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check(name="cpu", ok=True, detail=f"{cores} cores, torch would use {torch.get_num_threads()} threads")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; small policies do not need one"
    yield Check(name="gpu", ok=True, detail=gpu)


def _rendering(*, needed: bool) -> Check:
    """Render in another process, because a broken GL driver may crash it."""
    name, backend = "rendering", _environment_as_given().get("MUJOCO_GL", "egl")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PICTURE],
            env=_environment_as_given(),
            capture_output=True,
            text=True,
            timeout=GL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"no image within {GL_TIMEOUT_S:.0f} s"
        return Check(name=name, ok=False, detail=detail, remedy=_HOW_TO_GL, needed=needed)
    if done.returncode == 0:
        return Check(name=name, ok=True, detail=f"rendered an image with {backend}", needed=needed)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"the process ended with {done.returncode}"
    reason = f"MUJOCO_GL={backend}: {reason.partition(': ')[2] or reason}"
    return Check(name=name, ok=False, detail=f"does not work ({reason[:160]})", remedy=_HOW_TO_GL, needed=needed)


def _environment_as_given() -> dict[str, str]:
    """The environment before Dovetail set MUJOCO_GL."""
    from dovetail.robots.sim._gl import GIVEN

    others = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return others if GIVEN is None else {**others, "MUJOCO_GL": GIVEN}


def _runs_folder(runs_dir: Path) -> Check:
    there = _nearest(runs_dir)
    ok = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    detail = f"{runs_dir} " + ("can be written" if ok else f"cannot be written ({there})")
    return Check(name="runs folder", ok=ok, detail=detail, remedy="choose another with --runs-dir")


def _disk(runs_dir: Path) -> Check:
    free_gb = shutil.disk_usage(_nearest(runs_dir)).free / 1e9
    detail = f"{free_gb:.1f} GB free"
    return Check(
        name="disk", ok=free_gb >= MIN_FREE_GB, detail=detail, remedy="free disk space, or use --runs-dir"
    )


def _nearest(path: Path) -> Path:
    """The path, or the first existing folder above it."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _recipes() -> Iterator[Check]:
    fine = []
    for recipe in recipes():
        try:
            load([recipe.name])
            fine.append(recipe.name)
        except DovetailError as error:
            yield Check(name=f"recipe {recipe.name}", ok=False, detail=str(error))
    yield Check(name="recipes", ok=True, detail=", ".join(fine))


def _plugins() -> Iterator[Check]:
    num_fine = 0
    for plugin in list_plugins():
        if plugin.error is None:
            num_fine += 1
        else:  # a broken plugin of another package is not needed
            detail = plugin.error
            yield Check(name="plugin", ok=False, detail=detail, needed=plugin.origin == "built-in")
    yield Check(name="plugins", ok=True, detail=f"{num_fine} can be imported")


def _recipe(config: RunConfig) -> Iterator[Check]:
    """Build all parts of the recipe and check that they fit."""
    from dovetail.api.checks import check_fits
    from dovetail.runs.assembly.fleet import with_embodiments

    task = config.task.type if config.task else "its own task"
    what = f"robot {config.robot.type}, {task}, policy {config.policy.type}, algorithm {config.algorithm.type}"
    try:
        check_fits(with_embodiments(config))
    except DovetailError as error:
        yield Check(name="recipe", ok=False, detail=str(error))
    else:
        yield Check(name="recipe", ok=True, detail=f"{what} fit each other")
