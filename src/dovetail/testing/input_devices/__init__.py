"""Emulated input devices: a gamepad, a pedal and a SpaceMouse that a test holds in its hand. Linux, no root, no /dev/uinput.

    with EmulatedGamepad(tmp_path / "pad") as pad:
        command = ["dovetail", "run", "push-cube", *pad.overrides]        # another process opens the device
        ...
        pad.hold(); pad.push(ABS_Y, -1.0)                                 # take over and drive forward
        pad.press(BTN_MODE)                                               # emergency stop
        pad.unplug(); pad.plug_in()

A device is a Unix socket that carries the bytes which the kernel would send: `struct input_event` of evdev, or HID
reports of a SpaceMouse. Like the kernel, it sends them to every process that has the device open. A file next to it has
the answers to the ioctls. `overrides` chooses an operator of this folder; it is the real one except that it opens the
socket. The real pyspacemouse parses the reports; only easyhid, its access to USB, is replaced.

The terminal's keys need no emulator: use a pseudo terminal (`pty.openpty`).
"""

from dovetail.testing.input_devices.evdev import EmulatedInput, EmulatedKernel
from dovetail.testing.input_devices.gamepad import EmulatedGamepad, EmulatedGamepadOperator
from dovetail.testing.input_devices.pedal import EmulatedPedal, EmulatedPedalOperator
from dovetail.testing.input_devices.spacemouse import (
    EmulatedSpaceMouse,
    EmulatedSpaceMouseOperator,
    install_easyhid,
)

__all__ = [
    "EmulatedGamepad",
    "EmulatedGamepadOperator",
    "EmulatedInput",
    "EmulatedKernel",
    "EmulatedPedal",
    "EmulatedPedalOperator",
    "EmulatedSpaceMouse",
    "EmulatedSpaceMouseOperator",
    "install_easyhid",
]
