"""The supervisor's side of one of its processes: send messages to it and wait for replies."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.core.errors import FailureError, StopRequested
from dovetail.processes.channel import Channel, ChannelClosed
from dovetail.processes.child import ONE_THREAD, ChildProcess

__all__ = ["STOP_S", "HostProcess", "start_processes"]

STOP_S = 0.5  # the longest wait for a reply, or for an end, after the run was asked to stop
_POLL_S = 0.02


class HostProcess(ChildProcess):
    """Runs `python -m dovetail.robot_host.process_main NAME DESCRIPTORS`. No other process inherits the descriptors."""

    def __init__(
        self, name: str, descriptors: Mapping[str, int], *, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.name = name
        self.is_ready = False
        self._should_stop = should_stop
        self._num_missing_replies = 0  # also of requests that timed out
        self.channel, theirs = Channel.pair()
        inherited = {**descriptors, "channel": theirs.fileno()}
        try:
            super().__init__(
                f"the {name} process",
                "dovetail.robot_host.process_main",
                [name, json.dumps(inherited)],
                descriptors=tuple(inherited.values()),
                environment=ONE_THREAD,
            )
        finally:
            theirs.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message that has no reply. Does nothing if the process has ended: `receive` reports that."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(message)

    def request(self, message: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send a message and wait for the reply. Raises FailureError with a reason if none comes.

        Raises StopRequested if none comes within STOP_S after the arm was asked to stop.
        """
        self.send(message)
        self._num_missing_replies += 1
        deadline_s, stopping = time.monotonic() + timeout_s, False
        while self._num_missing_replies:
            if not stopping and self._should_stop():
                deadline_s, stopping = min(deadline_s, time.monotonic() + STOP_S), True
            if time.monotonic() > deadline_s:
                if stopping:
                    raise StopRequested
                raise FailureError(f"{self.title} does not reply")
            reply = self.receive(timeout_s=_POLL_S)
            if reply is not None:
                self._num_missing_replies -= 1
        assert reply is not None
        return reply

    def receive(self, *, timeout_s: float) -> dict[str, Any] | None:
        """The next message, if it comes in time. Raises FailureError if the process has failed or ended."""
        try:
            message = self.channel.receive(timeout_s=timeout_s)
        except ChannelClosed:
            raise FailureError(self.exit_reason()) from None
        if message is not None and "error" in message:
            self.error = message["error"]
            raise FailureError(self.exit_reason())
        return message

    def exit_reason(self) -> str:
        with contextlib.suppress(ChannelClosed, OSError):
            while (message := self.channel.receive(timeout_s=0.0)) is not None:
                self.error = message.get("error", self.error)
        return super().exit_reason()

    def close(self, *, timeout_s: float) -> bool:
        ended = super().close(timeout_s=timeout_s)
        self.channel.close()
        return ended


def start_processes(
    memory: int,
    for_control: Mapping[str, int],
    for_guard: Mapping[str, int],
    *,
    should_stop: Callable[[], bool],
) -> dict[str, HostProcess]:
    """Start control, inference, recorder and guard. Closes all given descriptors in this process."""
    (request_reader, request_writer), (answer_reader, answer_writer) = os.pipe(), os.pipe()
    # nothing is written to these pipes: each closes when its process ends
    (recorder_reader, recorder_writer), (guard_reader, guard_writer) = os.pipe(), os.pipe()
    for_control = {"inference": answer_reader, "recorder": recorder_reader, "guard": guard_reader, **for_control}
    inherited: dict[str, dict[str, int]] = {
        "control": {"request": request_writer, **for_control},
        "inference": {"request": request_reader, "answer": answer_writer},
        "recorder": {"alive": recorder_writer},
        "guard": {"alive": guard_writer, **for_guard},
    }
    started: dict[str, HostProcess] = {}
    try:
        for name, descriptors in inherited.items():
            if name == "guard":
                descriptors["control"] = os.pidfd_open(started["control"].pid)
            started[name] = HostProcess(name, {**descriptors, "memory": memory}, should_stop=should_stop)
    except OSError:
        for process in started.values():
            process.close(timeout_s=0.0)
        raise
    finally:  # a pipe closes with a process only if no other process has it open
        for descriptor in (memory, *(number for part in inherited.values() for number in part.values())):
            os.close(descriptor)
    return started
