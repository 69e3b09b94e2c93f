"""Chooses MuJoCo's GL backend. Without one, everything except rendering works.

MuJoCo reads MUJOCO_GL when it is imported, and the import fails if the backend is missing. So import this module before
any other that imports mujoco.
"""

from __future__ import annotations

import importlib
import os

from dovetail.robots.gl_backend import GIVEN, choose_gl_backend

__all__ = ["GIVEN", "MISSING"]


def _import_mujoco() -> str | None:
    """Return why GL is missing, or None."""
    choose_gl_backend()
    try:
        importlib.import_module("mujoco")
    except Exception as error:  # depends on the GL backend
        reason = " ".join(f"MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {error}".split())
        os.environ["MUJOCO_GL"] = "disable"
        importlib.import_module("mujoco")
        return reason
    return None


MISSING = _import_mujoco()
