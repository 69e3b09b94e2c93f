"""Two network namespaces with a connection that tests can cut."""

import os
import shutil
import subprocess

import pytest

from dovetail.runtime.ray.cluster.joining import leave

__all__ = ["hosts", "ip", "needs_namespaces"]

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
