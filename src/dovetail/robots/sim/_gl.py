"""Chooses MuJoCo's GL backend. Without one, everything except rendering works.

MuJoCo reads MUJOCO_GL when it is imported, and the import fails if the backend is missing. So import this module before
any other that imports mujoco.
"""

from __future__ import annotations

import importlib
import os
import sys

__all__ = ["GIVEN", "MISSING"]

GIVEN = os.environ.get("MUJOCO_GL")
"""The user's setting."""


def _import_mujoco() -> str | None:
    """Return why GL is missing, or None."""
    if GIVEN is None and sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = "egl"
    try:
        importlib.import_module("mujoco")
    except Exception as error:  # depends on the GL backend
        reason = " ".join(f"MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {error}".split())
        os.environ["MUJOCO_GL"] = "disable"
        importlib.import_module("mujoco")
        return reason
    return None


MISSING = _import_mujoco()
