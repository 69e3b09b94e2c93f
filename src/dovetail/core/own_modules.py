"""Classes and modules of the user: `module:Class` of a plugin or model, and `module:Name-v0` of a Gymnasium environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from dovetail.core.errors import PluginError, did_you_mean

__all__ = ["load_class", "search_current_folder"]


def load_class(target: str, *, what: str, is_own: bool = True) -> type:
    """Import `package.module:Class`. `what` names it in errors. A class of the user's own (`is_own`) may also be in the
    current folder.

    This runs code of the module. So the target must come from the user, or from a config that the user trusts."""
    module_name, _, attribute = target.replace(" ", "").partition(":")
    if not module_name or not all(part.isidentifier() for part in attribute.split(".")):
        raise PluginError(f"{what} should be written as 'package.module:Class', got '{target}'")
    try:
        if is_own:
            search_current_folder(module_name)
        found: object = importlib.import_module(module_name)
    except Exception as problem:  # a foreign module may raise anything
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        where = ""
        if is_own and isinstance(problem, ModuleNotFoundError) and problem.name == module_name:
            where = f". {os.getcwd()} and PYTHONPATH have no {module_name}: run the command in the folder of the module"
        raise PluginError(f"{what}: cannot import module '{module_name}' ({reason}){where}") from problem
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name, value in vars(found).items() if isinstance(value, type)]
            raise PluginError(f"{what}: '{module_name}' has no '{attribute}'.{did_you_mean(part, names)}")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise PluginError(f"{what}: '{target}' should be a class, got a {type(found).__name__}")
    return found


def search_current_folder(module_name: str) -> None:
    """Add the current folder to the end of the search path, if the module is not found without it."""
    top, here = module_name.partition(".")[0], os.getcwd()
    if top not in sys.modules and here not in sys.path and importlib.util.find_spec(top) is None:
        sys.path.append(here)
        importlib.invalidate_caches()
