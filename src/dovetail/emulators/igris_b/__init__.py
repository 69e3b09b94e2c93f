"""An emulated igris_b: a robot with two arms and two hands that speaks ROS 2 topics over DDS."""

from dovetail.emulators.igris_b.emulator import IgrisBEmulator, IgrisBEmulatorConfig

__all__ = ["IgrisBEmulator", "IgrisBEmulatorConfig"]
