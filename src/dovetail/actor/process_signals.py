"""What the processes of a robot signal to each other on their board: heartbeats, requests to stop, the guard's reports."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dovetail.actor.board_layout import COUNTERS, HEALTH, NUM_MEASURED, REPORT_BYTES, BoardLayout, carve
from dovetail.core.types import Array, Observation

__all__ = ["ProcessSignals"]


class ProcessSignals:
    """The part of a Board without steps and frames. Each value has one writing process."""

    def __init__(self, layout: BoardLayout, memory: memoryview | None = None) -> None:
        self.layout = layout
        self._arrays = carve(layout, np.zeros(layout.num_bytes, np.uint8) if memory is None else memory)
        self._counters = {name: self._arrays[f"counter/{name}"] for name in COUNTERS}

    # ---- heartbeats and requests

    @property
    def heartbeat_ns(self) -> int:
        return int(self._counters["heartbeat_ns"][0])

    def beat(self, now_ns: int) -> None:
        self._counters["heartbeat_ns"][0] = now_ns

    @property
    def ticked_ns(self) -> int:
        """Time of the last control tick, by the machine's monotonic clock."""
        return int(self._counters["ticked_ns"][0])

    def ticked(self, now_ns: int, *, late_ns: int = 0, overrun: bool = False, inference_ns: int = 0) -> None:
        """Record the end of a tick. `inference_ns` is the time of the last inference."""
        counters = self._counters
        counters["ticked_ns"][0] = now_ns
        counters["ticks"][0] += 1
        counters["overruns"][0] += overrun
        counters["late_ns"][0] = late_ns
        if late_ns > counters["worst_late_ns"][0]:
            counters["worst_late_ns"][0] = late_ns
        counters["inference_ns"][0] = inference_ns

    @property
    def health(self) -> dict[str, int]:
        """Ticks and overruns so far, lateness of the last tick, and the worst lateness in this episode."""
        return {name: int(self._counters[name][0]) for name in HEALTH}

    @property
    def stopping(self) -> bool:
        return bool(self._counters["stop"][0])

    def ask_to_stop(self, *, stop: bool = True) -> None:
        """Ask the control process to stop, or withdraw the request."""
        self._counters["stop"][0] = stop

    @property
    def success_check(self) -> tuple[int, bool]:
        """The last row that the success detector checked, or -1, and whether it showed success."""
        packed = int(self._counters["judged"][0])
        return packed // 2 - 1, bool(packed % 2)

    def post_success_check(self, row: int, done: bool) -> None:
        """Store both in one integer, so that a reader gets them together."""
        self._counters["judged"][0] = 2 * (row + 1) + done

    # ---- control and guard

    @property
    def command_times(self) -> npt.NDArray[np.int64]:
        """See `SafeRobot.command_times`: the last command and the last stop. The guard writes the time of its stop, too."""
        return self._arrays["guard/command_times"]

    def measure(self, observation: Observation) -> None:
        """Show the guard an observation. Unlike the rows, these also come from resets and homing."""
        number = self.num_measured
        at = number % NUM_MEASURED
        self._arrays["guard/measured_ns"][at] = observation.time_ns
        for key in self.layout.vectors:
            self._arrays[f"guard/measured/{key}"][at] = observation.values[key]
        self._arrays["guard/num_measured"][0] = number + 1

    @property
    def num_measured(self) -> int:
        return int(self._arrays["guard/num_measured"][0])

    def measured(self, key: str, number: int) -> Array:
        """A vector of one of the newest measurements."""
        found: Array = self._arrays[f"guard/measured/{key}"][number % NUM_MEASURED].copy()
        return found

    def measured_ns(self, number: int) -> npt.NDArray[np.int64]:
        """Times of the measurements up to this one, oldest first. Half of the ring, because the other half may change."""
        numbers = np.arange(max(0, number + 1 - NUM_MEASURED // 2), number + 1)
        times: npt.NDArray[np.int64] = self._arrays["guard/measured_ns"][numbers % NUM_MEASURED]
        return times

    @property
    def control_ns(self) -> int:
        """Heartbeat of the control loop; 0 while none is due, for example during a task's reset."""
        return int(self._arrays["guard/control_ns"][0])

    def beat_control(self, now_ns: int) -> None:
        self._arrays["guard/control_ns"][0] = now_ns

    @property
    def guard_ns(self) -> int:
        """Heartbeat of the guard."""
        return int(self._arrays["guard/guard_ns"][0])

    def beat_guard(self, now_ns: int) -> None:
        self._arrays["guard/guard_ns"][0] = now_ns

    @property
    def guard_kill_ns(self) -> int:
        """When the guard began to end the control process; 0: never. `guard_report` follows."""
        return int(self._arrays["guard/kill_ns"][0])

    def post_guard_kill(self, now_ns: int) -> None:
        self._arrays["guard/kill_ns"][0] = now_ns

    @property
    def guard_request(self) -> str:
        """Why the guard asks the control loop to stop the arm; empty if it does not."""
        return self._text("guard/request")

    def post_guard_request(self, reason: str) -> None:
        self._write_text("guard/request", reason)

    @property
    def guard_report(self) -> str:
        """What the guard did because the control process did not; empty: nothing."""
        return self._text("guard/report")

    def post_guard_report(self, text: str) -> None:
        self._write_text("guard/report", text)

    @property
    def person_request(self) -> str:
        """What the control loop asks a person to do, such as `place the part`; empty: nothing."""
        return self._text("person/request")

    def ask_person(self, text: str) -> None:
        """Show a request to the person at the console or terminal. Empty: it is done."""
        self._write_text("person/request", text)

    def _text(self, name: str) -> str:
        length = int(self._arrays[f"{name}_length"][0])
        return self._arrays[name][:length].tobytes().decode(errors="ignore") if length else ""

    def _write_text(self, name: str, text: str) -> None:
        data = text.encode()[:REPORT_BYTES]
        self._arrays[f"{name}_length"][0] = 0
        self._arrays[name][: len(data)] = np.frombuffer(data, np.uint8)
        self._arrays[f"{name}_length"][0] = len(data)  # last: a reader sees the whole text
