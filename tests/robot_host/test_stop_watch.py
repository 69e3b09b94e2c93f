"""A real arm in one process: refused without a watchdog in its controller; a thread stops it while the loop hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dovetail.api.checks import check_fits
from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.types import Purpose
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.build import build_assembly
from dovetail.testing.socket_arm_process import ArmProcess
from support.guarded_arm import CONFIG
from support.live_host import order
from support.waiting import wait_until

PRESSED = "the emergency stop was pressed (test)"


class OneProcess:
    """Runs episodes in a thread of this process."""

    def __init__(self, folder: Path, *, driver: str = "SocketArm") -> None:
        self.arm = ArmProcess().__enter__()
        self._block = folder / "block"
        path = folder / "one.yaml"
        path.write_text(
            CONFIG.format(
                block=self._block,
                driver=f"dovetail.testing.socket_arm:{driver}",
                address=self.arm.address,
                stop=self.arm.stop_address,
                layout="one_process",
            )
        )
        self.path, self._ending, self.error = path, threading.Event(), None
        self.assembly = build_assembly(
            load([path], ["safety.controller_watchdog=true"]),
            should_stop=self._ending.is_set,
            live=lambda robot: LiveLink(folder, robot=robot, waits=True),
        )
        self.link = self.assembly.link
        self._actor = self.assembly.actor_for(Purpose.ONLINE)
        self._thread = threading.Thread(target=self._run)

    def go(self) -> None:
        self._thread.start()
        self.wait_for_motion(time.monotonic_ns())

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._actor.run(order())
        except Exception as error:
            self.error = error

    def wait_for_motion(self, since_ns: int) -> None:
        wait_until(lambda: len(self.arm.motions(after_ns=since_ns)) > 5 or self.error, timeout_s=20.0)
        assert self.error is None

    def block(self, call: str) -> None:
        self._block.write_text(call)
        wait_until(Path(f"{self._block}.{call}").exists, timeout_s=10.0)

    def unblock(self) -> None:
        self._block.write_text("")

    def end(self) -> None:
        self._ending.set()

    def close(self) -> None:
        self.unblock()
        self.end()
        if self._thread.is_alive():
            self._thread.join(20.0)
        self.assembly.close()
        self.arm.__exit__(None, None, None)


@pytest.fixture
def one(tmp_path):
    made: list[OneProcess] = []

    def make(**options) -> OneProcess:
        made.append(OneProcess(tmp_path, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.mark.parametrize("driver", ["SocketArm", "SocketArmWithStop"])
@pytest.mark.parametrize("call", ["observe", "send"])
def test_stop_while_the_driver_hangs(one, call, driver):
    run = one(driver=driver)
    run.go()
    run.block(call)
    pressed_ns = time.monotonic_ns()
    run.link.stop.press("test")
    wait_until(lambda: run.arm.stops(after_ns=pressed_ns), timeout_s=5.0)
    (stopped_ns, *_) = run.arm.stops(after_ns=pressed_ns)
    assert stopped_ns - pressed_ns < 1e9
    run.unblock()  # the call returns late
    wait_until(lambda: run.link.fault is not None, timeout_s=5.0)
    assert PRESSED in run.link.fault
    time.sleep(0.2)
    commands = [
        entry for entry in run.arm.journal() if entry["ns"] > stopped_ns and entry["kind"] in ("target", "stop")
    ]
    targets = [entry for entry in commands if entry["kind"] == "target"]
    assert len(targets) == (call == "send")  # the command that was under way
    assert commands[-1]["kind"] == "stop"  # a stop follows it
    released_ns = time.monotonic_ns()
    run.link.acknowledge()
    run.wait_for_motion(released_ns)


def test_end_of_the_run_while_the_driver_hangs_stops_the_arm_and_is_not_an_error(one):
    run = one()
    run.go()
    run.block("observe")
    asked_ns = time.monotonic_ns()
    run.end()
    wait_until(lambda: run.arm.stops(after_ns=asked_ns), timeout_s=5.0)
    run.unblock()
    run._thread.join(10.0)
    assert run.error is None
    assert run.arm.motions(after_ns=run.arm.stops(after_ns=asked_ns)[0]) == []


def test_stop_between_two_episodes_reaches_the_arm_without_a_latched_fault(one):
    run = one()
    pressed_ns = time.monotonic_ns()
    run.link.stop.press("test")
    wait_until(lambda: run.arm.stops(after_ns=pressed_ns), timeout_s=5.0)
    run.link.acknowledge()
    run.go()
    assert run.link.fault is None


def test_real_arm_in_one_process_is_refused(one):
    config = load([one().path])
    for build in (lambda: build_assembly(config).actor_for(Purpose.ONLINE), lambda: check_fits(config)):
        with pytest.raises(UsageError) as refused:
            build()
        assert "actor.layout=processes" in str(refused.value)
        assert "safety.controller_watchdog=true" in str(refused.value)
        assert "\n" not in str(refused.value)
