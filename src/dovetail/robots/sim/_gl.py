"""Chooses MuJoCo's GL backend. Must be imported before `mujoco`: it reads MUJOCO_GL only once."""

from __future__ import annotations

import os
import sys

if "MUJOCO_GL" not in os.environ and sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
    os.environ["MUJOCO_GL"] = "egl"
