"""How a system gets stuck at each place of the STOP matrix, and how it is released."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.core.errors import FailureError

if TYPE_CHECKING:
    from dovetail.bench.stop._system import StopSystem

__all__ = ["NOT_STUCK", "stuck_at"]

NOT_STUCK = "not stuck"

_TICKS_S = 0.2  # several control ticks
_EPISODE_S = 30.0  # an episode ends within this time, also on a busy machine
_HOMING_S = 5.0  # longer than an episode, shorter than the time allowed for homing
_BLOCKED = {
    "task reset": "reset",
    "inference": "act",
    "labeler": "label",
    "full disk": "full",
    "hanging disk": "fsync",
}


@contextlib.contextmanager
def stuck_at(system: StopSystem, place: str, *, arm: int) -> Iterator[None]:
    from dovetail.bench.stop._system import wait_for

    emulated = system.arms[arm]
    if place == NOT_STUCK:
        yield
    elif place in ("driver observe", "driver send"):
        emulated.behave(**{place.removeprefix("driver "): "silent"})
        time.sleep(_TICKS_S)
        yield
        emulated.behave_well()
    elif place == "homing":
        since_ns = time.monotonic_ns()
        emulated.behave(stuck=True)
        # A stop ends an episode. The motion after it is homing, which cannot arrive. Without a stop it is homing already.
        with contextlib.suppress(FailureError):
            wait_for(lambda: emulated.stops(after_ns=since_ns), timeout_s=_HOMING_S, what="the episode's end")
            ended_ns = time.monotonic_ns()
            wait_for(lambda: emulated.motions(after_ns=ended_ns), timeout_s=_HOMING_S, what="the arm to home")
        yield
        emulated.behave_well()
    elif place in _BLOCKED:
        name = _BLOCKED[place]
        system.block(name)
        wait_for(lambda: system.has_blocked(name), timeout_s=_EPISODE_S, what=f"the run to be stuck in {name}")
        time.sleep(0.0 if place == "full disk" else _TICKS_S)  # a full disk soon ends the run
        yield
        system.block()
    else:
        with _paused(_paused_pid(system, place, arm)):
            time.sleep(_TICKS_S if place == "Ray call" else 0.0)
            yield


def _paused_pid(system: StopSystem, place: str, arm: int) -> int:
    if place == "console":
        return system.console_pid()
    if place == "Ray call":
        return system.pid_of_role("StoreRole")  # arms ask it for permits, and deliver episodes to it
    return system.pid_of(place.removeprefix("paused "), arm=arm)


@contextlib.contextmanager
def _paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)
