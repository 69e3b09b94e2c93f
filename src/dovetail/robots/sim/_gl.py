"""Chooses MuJoCo's GL backend, and lets everything but pictures work where there is none.

MuJoCo loads its backend when it is imported, reads MUJOCO_GL only then, and fails there and then if the backend is
missing. So this module comes before anything else that imports it.
"""

from __future__ import annotations

import importlib
import os
import sys

__all__ = ["GIVEN", "MISSING"]

GIVEN = os.environ.get("MUJOCO_GL")
"""What the person had set."""


def _import_mujoco() -> str | None:
    """Returns why there is no GL; None if it looks well."""
    if GIVEN is None and sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = "egl"
    try:
        importlib.import_module("mujoco")
    except Exception as error:  # whatever the GL backend of the day raises
        reason = " ".join(f"MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {error}".split())
        os.environ["MUJOCO_GL"] = "disable"
        importlib.import_module("mujoco")
        return reason
    return None


MISSING = _import_mujoco()
