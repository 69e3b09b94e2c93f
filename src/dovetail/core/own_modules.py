"""Where modules of the user are looked for: `module:Class` of a plugin, and `module:Name-v0` of a Gymnasium environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

__all__ = ["search_current_folder"]


def search_current_folder(module_name: str) -> None:
    """Add the current folder to the end of the search path, if the module is not found without it."""
    top, here = module_name.partition(".")[0], os.getcwd()
    if top not in sys.modules and here not in sys.path and importlib.util.find_spec(top) is None:
        sys.path.append(here)
        importlib.invalidate_caches()
