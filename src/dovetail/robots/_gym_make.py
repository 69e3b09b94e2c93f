"""Makes a Gymnasium environment by its id, also one of a module in the current folder.

    env = make_env("FetchReach-v4", {})
    env = make_env("point_env:PointReach-v0", {"render_mode": "rgb_array"})    # point_env.py registers it

A module is looked for in the current folder after everything else, as own tasks are (see `core.own_modules`). A stored
config of an untrusted run folder never gets here with a module (see `config.trust`).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from dovetail.core.errors import ConfigWarning, UsageError
from dovetail.core.own_modules import search_current_folder
from dovetail.robots.gl_backend import choose_gl_backend

__all__ = ["make_env"]

_PROVIDERS = (
    "gymnasium_robotics",
    "gym_hil",
)  # import registers their environments; imported for unknown ids only
_OWN = "For an environment of your own, write module:Name-v0, with the module that registers it"


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Build the environment, or raise UsageError."""
    choose_gl_backend()  # before a provider imports MuJoCo
    module, _, name = env_id.rpartition(":")
    if module:
        _import_own(env_id, module)
    elif not _is_known(name):
        _import_providers()
    try:
        with _each_warning_once():
            return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise UsageError(f"there is no gym env '{env_id}'. {_hint(module, name)}") from error
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        line = " ".join(str(error).split())
        raise UsageError(f"cannot build gym env '{env_id}': {line}") from error


def _import_own(env_id: str, module: str) -> None:
    try:
        search_current_folder(module)
        importlib.import_module(module)
    except Exception as problem:  # a foreign module may raise anything
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise UsageError(f"gym env '{env_id}': cannot import module '{module}' ({reason})") from problem


def _import_providers() -> None:
    for provider in _PROVIDERS:
        with contextlib.suppress(ImportError), _notices_hidden():
            gymnasium.register_envs(importlib.import_module(provider))


@contextlib.contextmanager
def _notices_hidden() -> Iterator[None]:
    """Providers print notices about environments that were not asked for."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _is_known(name: str) -> bool:
    namespace, stem, version = parse_env_id(name)
    if version is None:
        return find_highest_version(namespace, stem) is not None
    return name in gymnasium.registry


def _hint(module: str, name: str) -> str:
    near = difflib.get_close_matches(name, list(gymnasium.registry), n=1)
    if module:
        registered = f"Did you mean '{module}:{near[0]}'?" if near else "It should call gymnasium.register"
        return f"Module '{module}' was imported. {registered}"
    return f"Did you mean '{near[0]}'? {_OWN}" if near else f"`gymnasium.pprint_registry()` lists all ids. {_OWN}"


_shown: set[str] = set()  # warnings


@contextlib.contextmanager
def _each_warning_once() -> Iterator[None]:
    """Gymnasium repeats its warnings for each environment that is made. Show each once, without its colors."""
    with warnings.catch_warnings(record=True) as seen:
        yield
    for one in seen:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(one.message)).removeprefix("WARN: ")
        if text not in _shown:
            _shown.add(text)
            is_gymnasium = "gymnasium" in one.filename
            warnings.warn(text, ConfigWarning if is_gymnasium else one.category, stacklevel=3)
