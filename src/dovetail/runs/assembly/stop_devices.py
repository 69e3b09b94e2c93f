"""Receives STOP of input devices while a process starts: before robot, task and operator exist."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import MakesDevice
from dovetail.core.errors import DovetailError
from dovetail.human.device_reader import DeviceReader
from dovetail.live.emergency import report_device_stop
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.operators import all_operators

__all__ = ["StopDevices"]


class StopDevices:
    """The devices of an operator and of those inside it, open from now on. A missing one is opened when it is plugged in.

    Make it first, then `report_to` the run's emergency stop: presses until then are kept. An operator that is built later
    takes the open device of its section, so no press is lost between the two.
    """

    def __init__(self, section: PluginSection) -> None:
        self._lock = threading.Lock()
        self._stop: RunStop | None = None
        self._pressed: list[str] = []  # names of operators whose STOP is not yet reported
        self._readers: dict[str, list[DeviceReader]] = {}  # by the settings of the operator
        for one in all_operators(section):
            if (reader := self._open(one)) is not None:
                self._readers.setdefault(_key(one), []).append(reader)

    def report_to(self, stop: RunStop) -> None:
        """Press `stop` for each STOP of a device, those before this call included."""
        with self._lock:
            self._stop = stop
            while self._pressed:
                report_device_stop(stop, self._pressed[0])
                self._pressed.pop(0)

    def take(self, section: PluginSection) -> DeviceReader | None:
        """The open device of this operator, once. The caller closes it."""
        readers = self._readers.get(_key(section), [])
        return readers.pop() if readers else None

    @property
    def threads(self) -> Collection[int]:
        """Native ids of the threads that read devices which are not taken."""
        return [reader.thread_id for readers in self._readers.values() for reader in readers]

    def close(self) -> None:
        """Close the devices that are not taken."""
        for readers in self._readers.values():
            while readers:
                readers.pop().close()

    def _open(self, section: PluginSection) -> DeviceReader | None:
        kind = resolve("operator", section.type)
        if not isinstance(kind, MakesDevice):
            return None
        try:
            device = kind.make_device(section.config)
        except DovetailError:  # such as an unknown key; building the operator reports it
            return None
        if device is None:
            return None
        reader = DeviceReader(device, name=kind.name)
        reader.on_emergency = partial(self._press, kind.name)
        reader.watch()
        return reader

    def _press(self, operator: str) -> None:
        with self._lock:
            if self._stop is not None:
                report_device_stop(self._stop, operator)
            elif operator not in self._pressed:
                self._pressed.append(operator)


def _key(section: PluginSection) -> str:
    return repr(section.to_plain())
