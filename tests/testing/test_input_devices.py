"""Emulated input devices, used by another process: its operator sees presses, events, silence and disconnections."""

import subprocess
import sys
import textwrap
import threading

import pytest

from dovetail.human.gamepad import ABS_Y, BTN_NORTH
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal, EmulatedSpaceMouse
from support.waiting import wait_until

READER = """
    import sys, time
    import numpy as np
    from dovetail.config.schema import PluginSection
    from dovetail.human.none import NoOperator
    from dovetail.testing.fakes import FakeArm, FakeArmConfig

    plain = dict(override.removeprefix("operator.").split("=", 1) for override in sys.argv[1:])
    plain = {key: int(value) if value.isdigit() else value for key, value in plain.items() if key != "operator"}
    section, arm = PluginSection.parse("operator", plain), FakeArm(FakeArmConfig())
    inner = {"inner": NoOperator()} if "Pedal" in plain["type"] else {}
    operator = section.build(robot=arm.spec, task=None, **inner)
    operator.watch(lambda name: print("emergency", flush=True))
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    last = None
    while True:
        polled = operator.poll(arm.observe())
        now = "drives" if polled.action is not None else str(polled.event or "policy")
        if now != last:
            print(now, flush=True)
            last = now
        time.sleep(0.002)
"""


class ReadingProcess:
    def __init__(self, device):
        command = [sys.executable, "-c", textwrap.dedent(READER), *device.overrides]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def pid(self):
        return self._process.pid

    def __enter__(self):
        self.expect("policy")
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()

    def expect(self, line):
        wait_until(lambda: line in self.lines, timeout_s=60.0, what=line, details=lambda: self.lines)
        self.lines.clear()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line.strip())


@pytest.mark.parametrize(
    "make", [EmulatedGamepad, EmulatedPedal, EmulatedSpaceMouse], ids=["gamepad", "pedal", "spacemouse"]
)
def test_another_process_sees_emergency_stop_takeover_and_disconnection(make, tmp_path):
    with make(tmp_path / "device") as device, ReadingProcess(device) as reader:
        device.stop()
        reader.expect("emergency")
        if isinstance(device, EmulatedSpaceMouse):
            wait_until(lambda: device.push(back=-1.0) or "drives" in reader.lines or device.rest())
        else:
            device.hold()
        reader.expect("drives")
        device.unplug()
        reader.expect("pause")
        device.plug_in()
        wait_until(lambda: device.stop() or "emergency" in reader.lines)  # it is opened again
        assert "drives" not in reader.lines


@pytest.mark.parametrize(
    "make", [EmulatedGamepad, EmulatedPedal, EmulatedSpaceMouse], ids=["gamepad", "pedal", "spacemouse"]
)
def test_every_process_that_has_the_device_open_sees_each_event(make, tmp_path):
    """As in the kernel: evdev and hidraw have a queue for each open file."""
    with make(tmp_path / "device") as device, ReadingProcess(device) as first, ReadingProcess(device) as second:
        for _ in range(3):
            device.stop()
            first.expect("emergency")
            second.expect("emergency")


def test_device_knows_which_processes_have_it_open(tmp_path):
    with EmulatedGamepad(tmp_path / "pad") as pad:
        with ReadingProcess(pad) as first, ReadingProcess(pad) as second:
            assert pad.reader_pids() == {first.pid, second.pid}
        assert pad.reader_pids() == set()


def test_gamepad_in_another_process_gives_events_and_holds_after_silence(tmp_path):
    with EmulatedGamepad(tmp_path / "pad") as pad, ReadingProcess(pad) as reader:
        pad.tap(BTN_NORTH)
        reader.expect("success")
        pad.hold()
        pad.push(ABS_Y, -1.0)
        reader.expect("drives")
        reader.expect("pause")


def test_events_without_a_reader_are_forgotten(tmp_path):
    """Like the kernel's: a process that opens the device later gets none of them."""
    with EmulatedGamepad(tmp_path / "pad") as pad:
        for _ in range(800):  # more than a queue holds
            pad.tap(BTN_NORTH)
        pad.stop()
        with ReadingProcess(pad) as reader:
            pad.hold()
            reader.expect("drives")
            assert "emergency" not in reader.lines
