"""STOP over real drivers and their emulators: every arm stands soon, and nothing moves it afterwards.

Every driver meets every source of STOP and every fault that makes sense. On Ray, two drivers with two arms each meet every
source: STOP reaches both arms.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail.bench.stop._matrix import ENDING, SOURCES
from dovetail.bench.stop._system import wait_for
from dovetail.core.clock import NS_PER_S
from support.driver_system import DRIVERS, FAULTS, DriverSystem

BOUND_S = {"franka": 1.5, "ros2": 1.0, "remote": 1.0, "lerobot": 1.5}  # generous: other work runs beside the tests
WATCH_S = 4.0  # after the event: nothing may move the arm again
ON_RAY = ("franka", "remote")


class Case(NamedTuple):
    layout: str
    driver: str
    event: str

    @property
    def exists(self) -> bool:
        """DDS has no connection that could be cut, and the terminal's keyboard needs a run without Ray."""
        if self.layout == "Ray":
            return self.driver in ON_RAY and self.event in SOURCES and self.event != "keyboard"
        return (self.driver, self.event) != ("ros2", "connection cut")

    @property
    def ends_system(self) -> bool:
        return self.event in ENDING or self.event in FAULTS

    @property
    def system(self) -> tuple[str, str, bool]:
        return self.layout, self.driver, self.event == "keyboard"


def cases() -> list:
    every = [
        Case(layout, driver, event)
        for layout in ("processes", "Ray")
        for driver in DRIVERS
        for event in (*SOURCES, *FAULTS)
    ]
    there = sorted((case for case in every if case.exists), key=lambda case: (case.system, case.ends_system))
    extended = {("processes", driver, "dovetail stop") for driver in DRIVERS} | {
        ("Ray", "remote", "dovetail stop")
    }
    marks = {True: pytest.mark.extended, False: pytest.mark.slow}
    return [
        pytest.param(case, id="-".join(case).replace(" ", "_"), marks=marks[case in extended]) for case in there
    ]


class Systems:
    """The running system, which cases of the same kind share."""

    def __init__(self) -> None:
        self._system: DriverSystem | None = None
        self._kind: tuple[str, str, bool] | None = None

    def get(self, case: Case) -> DriverSystem:
        if self._system is None or self._kind != case.system:
            self.close()
            folder = Path(tempfile.mkdtemp(prefix="stop-", dir="/tmp"))  # a short path: Ray puts sockets into it
            self._system = DriverSystem(
                folder,
                robot=case.driver,
                layout=case.layout,
                num_arms=2 if case.layout == "Ray" else 1,
                keyboard=case.event == "keyboard",
                console=case.event not in ENDING,
            )
            self._kind = case.system
            self._system.__enter__()
        return self._system

    def close(self) -> None:
        if self._system is not None:
            system, self._system = self._system, None
            system.close()
            shutil.rmtree(system.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def systems() -> Iterator[Systems]:
    opened = Systems()
    yield opened
    opened.close()


def all_swing(system: DriverSystem) -> bool:
    since_ns = time.monotonic_ns() - NS_PER_S
    return all(len(arm.motions(after_ns=since_ns)) > 2 for arm in system.arms)


@pytest.mark.parametrize("case", cases())
def test_the_arm_stands_and_stays(case: Case, systems: Systems, capsys: pytest.CaptureFixture[str]) -> None:
    system = systems.get(case)
    try:
        wait_for(lambda: all_swing(system), timeout_s=60.0, what="all arms swing")
        if case.event in FAULTS:
            since_ns, arms = system.suffer(case.event), system.arms[:1]
        else:
            pressed = system.press(case.event)
            assert not pressed.problem, pressed
            since_ns, arms = pressed.pressed_ns, system.arms
        time.sleep(max(since_ns / 1e9 + WATCH_S - time.monotonic(), 0.5))
        delays_ns = [arm.delay_ns(since_ns) for arm in arms]
        assert None not in delays_ns, system.output()[-2000:]
        stood_s = max(delay_ns for delay_ns in delays_ns if delay_ns is not None) / 1e9
        with capsys.disabled():  # for the pages of the drivers
            sys.stdout.write(f"\n{', '.join(case)}: stood after {stood_s:.3f} s ")
        assert stood_s < BOUND_S[case.driver], system.output()[-2000:]
        if not case.ends_system:
            system.acknowledge()
    except BaseException:
        systems.close()
        raise
    if case.ends_system:
        systems.close()
