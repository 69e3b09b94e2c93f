"""Runs cases of the STOP matrix one after another, and starts a new system only where a case needs one."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.bench.stop._matrix import Case
from dovetail.bench.stop._press import Press
from dovetail.bench.stop._system import StopSystem

__all__ = ["SystemPool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    layout: str
    num_arms: int
    keyboard: bool
    homes: bool
    console: bool


class SystemPool:
    """Holds one running system. `driver` is MODULE:CLASS in `dovetail.testing`."""

    def __init__(self, *, driver: str = "socket_arm:SocketArm") -> None:
        self._driver = driver
        self._system: StopSystem | None = None
        self._kind: _Kind | None = None
        self.num_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def run(self, case: Case) -> Press:
        """Get stuck, press, release, acknowledge."""
        system = self._system_for(case)
        try:
            with system.stuck(case.place, arm=case.arm_index):
                result = system.press(case.source)
            if case.ends_run:
                self._close()
            else:
                system.acknowledge()
        except BaseException:
            self._close()
            raise
        return result

    def _system_for(self, case: Case) -> StopSystem:
        kind = _Kind(
            layout=case.layout,
            num_arms=case.num_arms,
            keyboard=case.source == "keyboard",
            homes=case.place == "homing",
            console=not case.ends_run or "console" in (case.place, case.source),
        )
        if self._system is None or self._kind != kind:
            self._close()
            # a short path: Ray puts sockets into it
            folder = Path(tempfile.mkdtemp(prefix="stop-", dir="/tmp"))
            self.num_starts += 1
            self._system = StopSystem(folder, driver=self._driver, **asdict(kind)).__enter__()
            self._kind = kind
        return self._system

    def _close(self) -> None:
        if self._system is not None:
            system, self._system, self._kind = self._system, None, None
            system.close()
            shutil.rmtree(system.folder, ignore_errors=True)
