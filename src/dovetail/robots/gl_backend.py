"""Chooses the GL backend of MuJoCo before MuJoCo or an environment that uses it is imported. Does not import them."""

from __future__ import annotations

import ctypes.util
import os
import sys

__all__ = ["GIVEN", "choose_gl_backend"]

GIVEN = os.environ.get("MUJOCO_GL")
"""The user's setting, before Dovetail chose one."""

_HEADLESS = {"egl": "EGL", "osmesa": "OSMesa"}  # backend and its library, the faster one first


def choose_gl_backend() -> None:
    """Set MUJOCO_GL for a machine without a display, unless the user has set it. The default there, GLFW, cannot render."""
    if "MUJOCO_GL" in os.environ or not sys.platform.startswith("linux") or os.environ.get("DISPLAY"):
        return
    found = (backend for backend, library in _HEADLESS.items() if ctypes.util.find_library(library))
    os.environ["MUJOCO_GL"] = next(found, "egl")
