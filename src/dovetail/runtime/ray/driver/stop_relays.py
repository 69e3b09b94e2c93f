"""Relays the emergency stop between the driver and the arms on other machines, in separate threads.

Another thread of the driver may be stuck in a call to any role. An arm answers in a separate concurrency group, so the
call does not queue behind the others.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from dovetail.core.problem_report import ProblemReport
from dovetail.live.run_stop import RunStop
from dovetail.live.stop_relay import Exchange, Reply, StopRelay

__all__ = ["STOP_GROUP", "StopRelays"]

STOP_GROUP = "stop"
_POLL_S = 0.02
_SHARED_POLL_S = 1.0  # an arm on this machine needs no relay, but it may be restarted on another
_RETRY_S = 0.2
_ANSWER_S = 0.5


class StopRelays:
    """`add` each arm when its role is created; `close` ends the threads."""

    def __init__(self, stop: RunStop) -> None:
        self._stop = stop
        self._ended = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def add(self, name: str, handle: Any) -> None:
        relay = StopRelay(self._stop, partial(self._call, handle))
        report = ProblemReport(f"the relay of the emergency stop to {name}")
        thread = threading.Thread(target=self._relay, args=(relay, report), name=f"stop of {name}", daemon=True)
        self._threads[name] = thread
        thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads.values():
            thread.join(2 * _ANSWER_S)

    def _relay(self, relay: StopRelay, report: ProblemReport) -> None:
        wait_s = 0.0
        while not self._ended.wait(wait_s):
            try:
                wait_s = _POLL_S if relay.step() else _SHARED_POLL_S
            except (RayError, _Ended):  # the role restarts, or the run ends
                wait_s = _RETRY_S
            except Exception as error:  # a thread that ends would relay no later STOP
                report(error)
                wait_s = _RETRY_S

    def _call(self, handle: Any, message: Exchange) -> Reply | None:
        """Wait for the answer as long as it takes: a second call could add the records twice."""
        reference = handle.exchange_stop.options(concurrency_group=STOP_GROUP).remote(message)
        while not self._ended.is_set():
            try:
                reply: Reply | None = ray.get(reference, timeout=_ANSWER_S)
            except GetTimeoutError:
                continue
            return reply
        raise _Ended


class _Ended(Exception):
    """The run ends."""
