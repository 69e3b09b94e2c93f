"""Child processes: start one, wait for it, describe why it ended, kill it; and the main function of a child.

child = WorkerProcess("the collector", "dovetail.runtime.onpolicy.collector")
child.channel.send({"seed": 0})
...
child.close(timeout_s=2.0)      # killed if it has not ended by then
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import IO, NoReturn

from dovetail.core.errors import one_line
from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import Channel, ChannelClosed

__all__ = ["ONE_THREAD", "ChildProcess", "WorkerProcess", "exit_with_parent", "run_child", "run_worker"]

ONE_THREAD: Mapping[str, str | None] = MappingProxyType({"OMP_NUM_THREADS": "1"})
_EXIT_S = 0.5  # a child closes its descriptors this long before it has ended
_KILL_S = 2.0
_PR_SET_PDEATHSIG = 1


class ChildProcess:
    """`python -P -m MODULE ARGUMENTS`, in its own process group: Ctrl-C reaches only the parent, which ends its children.

    -P: a file of the current folder, such as a downloaded `av.py`, must not replace a module.

    `title` names it in messages. `environment` changes this process's variables; None removes one. `stdin_pipe` opens a
    pipe that closes with this process, so that the child can end too. `end_with_parent` has the kernel send SIGTERM then.
    """

    def __init__(
        self,
        title: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str | None] = MappingProxyType({}),
        stdin_pipe: bool = False,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        new_session: bool = False,
        end_with_parent: bool = False,
    ) -> None:
        self.title = title
        self.error: str | None = None  # why it ended, if the child sent that
        variables = {**os.environ, **environment}
        self.popen: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            pass_fds=tuple(descriptors),
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.PIPE if stdin_pipe else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=new_session,
            process_group=None if new_session else 0,
            preexec_fn=_request_end_with_parent if end_with_parent else None,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def was_killed(self) -> bool:
        """Whether another process killed it. A crash, for example of a driver, does not count."""
        return self.popen.poll() in (-signal.SIGKILL, -signal.SIGTERM) and self.error is None

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, timeout_s))
        return self.has_ended

    def exit_reason(self) -> str:
        """Why it ended, in one line."""
        self.wait(_EXIT_S)
        code = self.popen.poll()
        if self.error:
            return f"{self.title} has died: {self.error}"
        if code is None:
            return f"{self.title} does not respond"
        if code < 0:
            return f"{self.title} has died: killed by {signal.Signals(-code).name}"
        return f"{self.title} has died (exit status {code})"

    def terminate(self) -> None:
        self.popen.terminate()

    def kill(self, reason: str) -> None:
        """Returns soon even if it does not end, because it waits for a disk or a device in the kernel."""
        self.error = self.error or reason
        self.popen.kill()
        self.wait(_KILL_S)

    def close(self, *, timeout_s: float) -> bool:
        """Wait for it to end, then kill it. Returns whether it ended by itself."""
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        ended = self.wait(timeout_s)
        if not ended:
            self.kill("it did not end when asked to, and was killed")
        return ended


def _request_end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def exit_with_parent() -> None:
    """In a child with `stdin_pipe`: end this process when its parent has ended."""

    def wait_and_exit() -> None:
        os.read(0, 1)  # returns when the pipe closes: nothing is written to it
        os._exit(1)

    threading.Thread(target=wait_and_exit, name="parent", daemon=True).start()


class WorkerProcess(ChildProcess):
    """A child that exchanges arrays with this process. Its module calls `run_worker`."""

    def __init__(self, title: str, module: str) -> None:
        self.channel, theirs = ArrayChannel.pair()
        try:
            number = theirs.fileno()
            super().__init__(title, module, [str(number)], descriptors=[number], environment=ONE_THREAD)
        finally:
            theirs.close()

    def close(self, *, timeout_s: float) -> bool:
        self.channel.shutdown()
        return super().close(timeout_s=timeout_s)


def run_worker(work: Callable[[ArrayChannel], None]) -> NoReturn:
    channel = ArrayChannel.from_descriptor(int(sys.argv[1]))
    run_child(channel, lambda: work(channel))


def run_child(channel: Channel | ArrayChannel, work: Callable[[], None]) -> NoReturn:
    """Do all the work of this child process and end it. An exception is sent to the parent in one line.

    SIGINT and SIGTERM are ignored: the parent decides when a child ends, and a closed channel ends it too.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    status = 0
    try:
        work()
    except ChannelClosed:  # the parent has ended
        pass
    except Exception as error:  # a process border: the parent reports it
        status = 1
        if os.environ.get("DOVETAIL_DEBUG"):
            traceback.print_exc()
        with contextlib.suppress(ChannelClosed):
            channel.send({"error": one_line(error)})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a regular exit frees torch piece by piece, which takes a second
