"""Lets everything but images work where there is no GL.

MuJoCo loads its GL backend when it is imported, and fails there and then if that is missing or MUJOCO_GL names
one that does not exist. Import this before anything that imports it.
"""

from __future__ import annotations

import importlib
import os

__all__ = ["environment_as_given", "make_mujoco_importable", "missing_gl"]

_reason: str | None = None
_given = os.environ.get("MUJOCO_GL")


def make_mujoco_importable() -> None:
    """Import the simulation; if its GL backend cannot be, import it without one."""
    global _reason
    try:
        importlib.import_module("dovetail.robots.sim")  # chooses the backend where nobody has
    except Exception as error:  # whatever the GL backend of the day raises
        _reason = " ".join(f"MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {error}".split())
        os.environ["MUJOCO_GL"] = "disable"
        importlib.import_module("dovetail.robots.sim")


def missing_gl() -> str | None:
    """Why there is no GL in this process; None if it looked well at import."""
    return _reason


def environment_as_given() -> dict[str, str]:
    """The environment for a child that is to find out about GL for itself."""
    others = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return others if _given is None else {**others, "MUJOCO_GL": _given}
