"""An emulated arm behind a socket, its robot host with all processes, and a link through which STOP is pressed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail.actor.actors import ActorConfig
from dovetail.config.load import load
from dovetail.core.types import Episode
from dovetail.live.link import LiveLink
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.robot_host.host import RobotHost
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.testing.socket_arm_process import ArmProcess
from support.live_host import order
from support.waiting import wait_until

__all__ = ["GuardedArm", "guarded"]

CONFIG = """
task: {{type: "dovetail.testing.blocking_plugins:BlockingTask", block_file: "{block}"}}
robot: {{type: "{driver}", address: "{address}", stop_address: "{stop}", block_file: "{block}"}}
policy: {{type: "dovetail.testing.live:FaultyPolicy"}}
actor: {{type: naive, layout: {layout}, flush_every_s: 0.1, inference_timeout_s: 1.0, heartbeat_timeout_s: 1.0}}
algorithm: {{type: "dovetail.testing.fake_learning:FakeAlgorithm"}}
"""


class GuardedArm:
    """`go()` runs episodes in a thread until `end()`; each fault waits for an acknowledgement."""

    def __init__(
        self, folder: Path, *overrides: str, independent: bool = False, driver: str = "SocketArm"
    ) -> None:
        self.arm = ArmProcess().__enter__()
        self._block = folder / "block"
        driver = "SocketArmWithStop" if independent else driver
        driver = driver if ":" in driver else f"dovetail.testing.socket_arm:{driver}"
        path = folder / "guarded.yaml"
        path.write_text(
            CONFIG.format(
                block=self._block,
                driver=driver,
                address=self.arm.address,
                stop=self.arm.stop_address,
                layout="processes",
            )
        )
        config = load([path], overrides)
        assert isinstance(config.actor.config, ActorConfig)
        self.cell = build_workcell(task=config.task, robot=config.robot, safety=config.safety)
        self.link = LiveLink(folder, robot=self.cell.robot.spec, waits=True)
        self.link.open()
        self._ending = threading.Event()
        self.host = RobotHost(
            config,
            workcell=self.cell,
            policy=config.policy.build(robot=self.cell.robot.spec, seed=0).spec,
            spool=folder / "spool",
            should_stop=self._ending.is_set,
            link=self.link,
        )
        self.actor = AttendedActor(self.host, self.link, should_stop=self._ending.is_set)
        self.episodes: list[Episode | None] = []
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None

    def go(self, *, until_moving: bool = True) -> None:
        self._thread = threading.Thread(target=self._run, name="run")
        self._thread.start()
        if until_moving:
            self.wait_for_motion(time.monotonic_ns())

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self.episodes.append(self.actor.run(order()))
        except Exception as error:
            self.error = error

    def wait_for_motion(self, since_ns: int) -> None:
        wait_until(lambda: len(self.arm.motions(after_ns=since_ns)) > 5 or self.error, timeout_s=30.0)
        assert self.error is None

    def block(self, *calls: str) -> None:
        """Block the driver or the task in these calls; returns when one of them blocks."""
        self._block.write_text(" ".join(calls))
        shown = [Path(f"{self._block}.{call}") for call in calls]
        wait_until(lambda: any(path.exists() for path in shown), timeout_s=30.0)
        for path in shown:
            path.unlink(missing_ok=True)

    def unblock(self) -> None:
        self._block.write_text("")

    def press(self) -> int:
        """Press STOP; returns the monotonic time in ns."""
        pressed_ns = time.monotonic_ns()
        self.link.stop.press("test")
        return pressed_ns

    def stopped_after_s(self, since_ns: int) -> float:
        wait_until(lambda: self.arm.stops(after_ns=since_ns), timeout_s=10.0)
        return (self.arm.stops(after_ns=since_ns)[0] - since_ns) / 1e9

    def fault(self) -> str:
        """The fault that waits for an acknowledgement."""
        wait_until(lambda: self.link.fault is not None or self.error, timeout_s=10.0)
        assert self.link.fault is not None, self.error
        return self.link.fault

    def acknowledge(self) -> int:
        """Returns the time in ns before which the arm must not have moved."""
        acknowledged_ns = time.monotonic_ns()
        self.link.acknowledge()
        return acknowledged_ns

    def end(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(20.0)
            assert not self._thread.is_alive()

    def close(self) -> None:
        self._block.write_text("")
        self.end()
        self.host.close()
        self.cell.close()
        self.link.close()
        self.arm.__exit__(None, None, None)


@pytest.fixture
def guarded(tmp_path, processes):
    arms: list[GuardedArm] = []

    def make(*overrides: str, **options: Any) -> GuardedArm:
        arms.append(GuardedArm(tmp_path, *overrides, **options))
        return arms[-1]

    yield make
    while arms:
        arms.pop().close()
