"""A cluster of two simulated machines: two loopback addresses of this one."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import yaml

__all__ = ["dovetail", "free_ports", "lab_file"]


def free_ports(address: str) -> dict[str, object]:
    """Unused ports, as `ports` of a machine."""
    while True:
        first = random.randrange(20_000, 30_000)
        block = range(first, first + 26)
        if all(_is_free(address, port) for port in block):
            names = ("head", "node", "objects", "agent", "client")
            return {**dict(zip(names, block, strict=False)), "workers": [first + 5, first + 25]}


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def lab_file(folder: Path, *, desk: str = "127.0.0.2", cell: str = "127.0.0.3", name: str = "lab") -> Path:
    machines = {
        "desk": {"head": True, "address": desk, "resources": {"training": 1}, "num_cpus": 2},
        "cell": {"address": cell, "resources": {"inference": 1}, "num_cpus": 2},
    }
    for machine in machines.values():
        machine["ports"] = free_ports("0.0.0.0")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"cluster": {"machines": machines, "token_file": str(folder / "token")}}))
    return path


def dovetail(*words: object, inside: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another process."""
    command = [*inside, sys.executable, "-m", "dovetail.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, env={**os.environ, **more})
