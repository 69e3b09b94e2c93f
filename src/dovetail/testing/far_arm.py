"""An emulated arm as on another machine: its role does not find the memory of the run's STOP, so the Ray driver relays it.

All arms of a run that has one are far: a process that reads its settings does not find the STOP of a run for an arm.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.testing.socket_arm import SocketArm, SocketArmConfig

__all__ = ["FarSocketArm", "FarSocketArmConfig", "hide_stop_of_run"]

_attach = RunStop.attach


def _attach_as_far(folder: Path, *, arm: str | None = None) -> RunStop:
    if arm is not None:  # the role of an arm
        raise NotRunning(f"no run is active in {folder}: as on another machine")
    return _attach(folder)


def hide_stop_of_run() -> None:
    """From now on, the role of an arm in this process does not find the STOP of its run. Other processes do."""
    RunStop.attach = _attach_as_far  # type: ignore[method-assign]


class FarSocketArmConfig(SocketArmConfig):
    """An emulated arm behind a socket, as on another machine."""

    @model_validator(mode="after")
    def _hide(self) -> Self:
        hide_stop_of_run()
        return self


class FarSocketArm(SocketArm):
    """An emulated arm behind a socket, as on another machine."""

    Config: ClassVar[type[FarSocketArmConfig]] = FarSocketArmConfig
