"""Whether this machine renders images. Another process tries it, because a broken GL driver may crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from dovetail.api.readiness.finding import Finding

__all__ = ["RenderingCheck"]

TIMEOUT_S = 20.0
_PICTURE = """
from dovetail.robots.sim import SimRobot, SimRobotConfig
robot = SimRobot(SimRobotConfig(images=("front",), image_size=(32, 32)))
picture = robot.observe().values["front"]
robot.close()
assert picture.max() > picture.min(), "the image is blank"
"""
_REMEDY = "Install EGL (apt-get install libegl1 libgl1-mesa-dri), and leave MUJOCO_GL unset"


class RenderingCheck:
    """Starts at once; `finish` waits for the result."""

    def __init__(self, *, needed: bool) -> None:
        self._needed = needed
        self._environment = _environment_as_given()
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PICTURE],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> Finding:
        left_s = TIMEOUT_S - (time.monotonic() - self._started_s)
        try:
            _, errors = self._process.communicate(timeout=max(0.1, left_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return self._finding(ok=False, detail=f"no image within {TIMEOUT_S:.0f} s")
        backend = self._environment.get("MUJOCO_GL", "egl")
        if self._process.returncode == 0:
            return self._finding(ok=True, detail=f"rendered an image with {backend}")
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"the process ended with {self._process.returncode}"
        reason = f"MUJOCO_GL={backend}: {reason.partition(': ')[2] or reason}"
        return self._finding(ok=False, detail=f"does not work ({reason[:160]})")

    def _finding(self, *, ok: bool, detail: str) -> Finding:
        remedy = _REMEDY if self._needed else f"{_REMEDY} (only images and videos need it)"
        return Finding(name="rendering", ok=ok, detail=detail, remedy=remedy, needed=self._needed)


def _environment_as_given() -> dict[str, str]:
    """The environment before Dovetail set MUJOCO_GL."""
    from dovetail.robots.gl_backend import GIVEN

    others = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return others if GIVEN is None else {**others, "MUJOCO_GL": GIVEN}
