"""STOP of an input device while a process starts."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.types import Event, Purpose
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.stop_devices import StopDevices
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal
from dovetail.testing.socket_arm_process import ArmProcess
from support.guarded_arm import CONFIG
from support.waiting import wait_until

DEVICES = "dovetail.testing.input_devices"


def section(pad: EmulatedGamepad) -> PluginSection:
    return PluginSection.parse("operator", {"type": f"{DEVICES}:EmulatedGamepadOperator", "path": str(pad.path)})


def test_press_before_the_emergency_stop_of_the_run_is_known_counts_once_it_is(tmp_path: Path) -> None:
    with EmulatedGamepad(tmp_path / "pad") as pad, RunStop.create(tmp_path, arm="left") as stop:
        devices = StopDevices(section(pad))
        pad.stop()
        wait_until(lambda: devices._pressed)
        assert not stop.emergency
        devices.report_to(stop)
        assert stop.emergency and stop.source == "gamepad of left"
        stop.acknowledge()
        pad.stop()
        wait_until(lambda: stop.emergency)
        devices.close()
        wait_until(lambda: pad.reader_pids() == set())


def test_device_that_is_plugged_in_later_is_heard(tmp_path: Path) -> None:
    pad = EmulatedGamepad(tmp_path / "pad")
    with RunStop.create(tmp_path) as stop:
        devices = StopDevices(section(pad))
        devices.report_to(stop)
        pad.plug_in()
        wait_until(lambda: pad.reader_pids() == {os.getpid()})
        pad.stop()
        wait_until(lambda: stop.emergency)
        devices.close()
        pad.unplug()


def test_devices_inside_another_operator_are_open_too(tmp_path: Path) -> None:
    with EmulatedGamepad(tmp_path / "pad") as pad, EmulatedPedal(tmp_path / "pedal") as pedal:
        plain = {"type": f"{DEVICES}:EmulatedPedalOperator", "path": str(pedal.path), "stop_key": "KEY_C"}
        outer = PluginSection.parse("operator", {**plain, "operator": section(pad).to_plain()})
        devices = StopDevices(outer)
        assert pad.reader_pids() == pedal.reader_pids() == {os.getpid()}
        assert devices.take(section(pad)) is not None
        assert devices.take(section(pad)) is None
        devices.close()


class ArmThatIsBuiltSlowly:
    """`build_assembly` in a thread, as the supervisor calls it; the robot's constructor waits for `finish`."""

    def __init__(self, folder: Path, pad: EmulatedGamepad, arm: ArmProcess) -> None:
        self._slow, path = folder / "block.slow", folder / "run.yaml"
        self._slow.touch()
        path.write_text(
            CONFIG.format(
                block=folder / "block",
                driver="support.slow_start:SlowArm",
                address=arm.address,
                stop=arm.stop_address,
                layout="processes",
            )
        )
        config = load([path], ["robot.action=ee_delta", *pad.overrides])

        def build() -> None:
            self.assembly = build_assembly(config, live=lambda robot: LiveLink(folder, robot=robot, waits=True))

        self._thread = threading.Thread(target=build)
        self._thread.start()

    def finish(self) -> None:
        self._slow.unlink()
        self._thread.join(10.0)


def test_press_while_the_supervisor_builds_the_robot_stops_the_run(tmp_path: Path) -> None:
    with EmulatedGamepad(tmp_path / "pad") as pad, ArmProcess() as arm:
        made = ArmThatIsBuiltSlowly(tmp_path, pad, arm)
        wait_until(lambda: pad.reader_pids() == {os.getpid()})
        pad.stop()
        made.finish()
        assembly = made.assembly
        assert assembly.link is not None
        wait_until(
            lambda: assembly.link.stop.emergency
        )  # on a busy machine the thread that reads the pad may be late
        assert assembly.link.stop.source == "gamepad of robot"
        operator = assembly.workcell.operator(Purpose.ONLINE, assembly.config.operator, demo_noise=0.0)
        assert pad.num_readers() == 1  # the operator uses the device that is open
        pad.hold()
        wait_until(lambda: operator._reader.newest()[0].held)  # type: ignore[attr-defined]
        assert operator._reader.next_event() is not Event.EMERGENCY  # type: ignore[attr-defined]
        assembly.close()
        assert pad.reader_pids() == set()
