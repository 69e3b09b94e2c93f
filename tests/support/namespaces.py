"""Two network namespaces with a connection that tests can cut.

Processes of both share one kernel: they see each other in /proc, and so the memory of the run's STOP. `own_processes` gives
one of them its own processes, as on a machine of its own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.runtime.ray.cluster.joining import leave

__all__ = ["hosts", "ip", "needs_namespaces", "own_processes"]

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and the `ip` command"
)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Two namespaces, and the name of the network device in the first."""
    tag = f"{os.getpid() % 100_000}"
    names, ends = (f"dvta{tag}", f"dvtb{tag}"), (f"va{tag}", f"vb{tag}")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
            ip("-n", name, "addr", "add", f"10.203.77.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names, ends[0]
    finally:
        for machine in ("cell", "desk"):
            leave(machine)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


# the first process of a process namespace: it waits for processes whose parent has ended
_FIRST = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
"""


@contextlib.contextmanager
def own_processes(host: str) -> Iterator[tuple[str, ...]]:
    """Give a host its own process ids and /proc. Yields what comes before a command that runs there.

    Its processes cannot find those of another host, as on another machine. They end with this block.
    """
    command = ["ip", "netns", "exec", host, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen([*command, sys.executable, "-I", "-S", "-c", _FIRST])
    try:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        until_s = time.monotonic() + 10.0
        while not (found := children.read_text().split()):
            assert time.monotonic() < until_s, "the process namespace has not started"
            time.sleep(0.01)
        (first,) = found
        inside = ("nsenter", "--target", first, "--net", "--pid", "--mount", "--")
        while (
            Path(f"/proc/{first}/comm").read_text() == "unshare\n"
        ):  # it has its own /proc before it becomes Python
            time.sleep(0.01)
        yield inside
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
