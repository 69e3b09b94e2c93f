"""This machine as a part of a cluster: which of the file's machines it is, how it joins, and how it leaves without a trace.

`join` starts a keeper, which keeps a node of Ray's running until `leave`: a machine whose link was cut is sent away by the
head, and comes back by itself. What is known of it lies in a folder of its own under the temp folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dovetail import __version__
from dovetail.config.cluster import LOOPBACK, ClusterConfig, Machine
from dovetail.core.disk import write_atomic
from dovetail.core.errors import FailureError, UsageError, did_you_mean
from dovetail.runtime.ray.cluster.environment import settings
from dovetail.runtime.ray.cluster.node_keeper import PLAN, STATE
from dovetail.runtime.ray.cluster.process_marks import MARK, await_end, end_all, marked
from dovetail.runtime.ray.cluster.token import token_path

__all__ = ["Membership", "join", "leave", "membership", "this_machine"]

_START_S = 120.0
_LEAVE_S = 30.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What this machine's keeper says of itself."""

    machine: str
    meeting: str
    keeper: int
    state: str
    """joining, joined, lost or failed."""
    problem: str = ""

    @property
    def is_kept(self) -> bool:
        return self.keeper in marked(_folder(self.machine))


def this_machine(config: ClusterConfig, *, named: str | None = None) -> str:
    """The name of the machine that this is: as it is told, or by its host name or address."""
    if not config.machines:
        raise UsageError("the file names no machines: say in cluster.machines what each of them offers")
    if named is not None:
        if named not in config.machines:
            raise UsageError(f"no machine '{named}' in cluster.machines.{did_you_mean(named, config.machines)}")
        return named
    host = socket.gethostname().lower()
    by_name = [
        name
        for name, one in config.machines.items()
        if one.host and one.host.lower() in (host, host.partition(".")[0])
    ]
    found = by_name or [name for name, one in config.machines.items() if _is_ours(one.address)]
    if len(found) != 1:
        all_names = " or ".join(found or config.machines)
        raise UsageError(f"which machine is {host}? None of them says so clearly; add --as {all_names}")
    return found[0]


def _is_ours(address: str) -> bool:
    """Whether one of our interfaces has it; loopback addresses are everybody's."""
    if ip_address(address).is_loopback:
        return False
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def membership(name: str) -> Membership | None:
    try:
        return Membership(**json.loads((_folder(name) / STATE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise FailureError(f"cannot read {_folder(name) / STATE}: {error}") from error


def join(config: ClusterConfig, name: str) -> Membership:
    """Start this machine's keeper and wait until it has joined; who has joined already is left alone."""
    known = membership(name)
    if known is not None and known.is_kept:
        if known.meeting != config.meeting:
            raise UsageError(
                f"machine '{name}' is in the cluster at {known.meeting}: `dovetail cluster leave` it first"
            )
    else:
        leave(name)  # what a keeper that was killed has left
        _check_ports(name, config.machines[name])
        _start_keeper(config, name)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        known = membership(name)
        if known is not None and known.state == "joined":
            return known
        if known is not None and (known.state == "failed" or not known.is_kept):
            problem = known.problem or "its keeper died"
            leave(name)
            raise FailureError(f"machine '{name}' could not join: {problem}")
        time.sleep(_LOOK_S)
    leave(name)
    raise FailureError(f"machine '{name}' has not joined within {_START_S:.0f} s")


def _check_ports(name: str, machine: Machine) -> None:
    family = socket.AF_INET6 if ":" in machine.address else socket.AF_INET
    used = ["node", "objects", "agent", *(["head", "client"] if machine.head else [])]
    for key in used:
        port: int = getattr(machine.ports, key)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((machine.address, port))
            except OSError as error:
                what = f"machine '{name}' cannot listen on {machine.address}:{port} ({error.strerror})"
                raise UsageError(f"{what}: see cluster.machines.{name}.address and .ports.{key}") from error


def _start_keeper(config: ClusterConfig, name: str) -> None:
    folder, machine, meeting = _folder(name), config.machines[name], config.meeting
    assert meeting is not None
    folder.mkdir(mode=0o700)
    loopback = machine.head and machine.address == LOOPBACK
    plan = {
        "machine": name,
        "meeting": meeting,
        "command": _command(config, name, machine, folder),
        "environment": settings(config.detection, token=token_path(config), loopback=loopback),
    }
    write_atomic(folder / PLAN, json.dumps(plan).encode())
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "dovetail.runtime.ray.cluster.node_keeper", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: str(folder)},
            start_new_session=True,
        )
    state = {"machine": name, "meeting": meeting, "keeper": keeper.pid, "state": "joining"}
    if not (folder / STATE).exists():
        write_atomic(folder / STATE, json.dumps(state).encode())


def _command(config: ClusterConfig, name: str, machine: Machine, folder: Path) -> list[str]:
    """`ray start`, for this machine."""
    ports = machine.ports
    options: dict[str, Any] = {
        "node-ip-address": machine.address,
        "node-manager-port": ports.node,
        "object-manager-port": ports.objects,
        "runtime-env-agent-port": ports.agent,
        "min-worker-port": ports.workers[0],
        "max-worker-port": ports.workers[1],
        "object-store-memory": config.store_mb << 20,
        "temp-dir": folder,
        "resources": json.dumps(machine.resources),
        "include-log-monitor": "false",
        "labels": f"dovetail/machine={name},dovetail/version={__version__}",
    }
    if machine.num_cpus is not None:
        options["num-cpus"] = machine.num_cpus
    if machine.num_gpus is not None:
        options["num-gpus"] = machine.num_gpus
    if machine.head:
        options |= {"port": ports.head, "ray-client-server-port": ports.client, "include-dashboard": "false"}
    else:
        options["address"] = config.meeting
    given = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return [*given, "--block", "--disable-usage-stats", *(["--head"] if machine.head else [])]


def leave(name: str) -> bool:
    """End this machine's node and everything that ran on it; whether there was any. Twice is as good as once."""
    folder = _folder(name)
    pids = marked(folder)
    known = membership(name) if folder.exists() else None
    if known is not None and known.keeper in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(known.keeper, signal.SIGTERM)
        await_end(folder, seconds=_LEAVE_S)
    end_all(folder)  # whose keeper was killed
    if not await_end(folder, seconds=_LEAVE_S):
        raise FailureError(f"processes of machine '{name}' do not end: {', '.join(map(str, marked(folder)))}")
    shutil.rmtree(folder, ignore_errors=True)
    return bool(pids)


def _folder(name: str) -> Path:
    """Short, because sockets lie in it; and nobody's but ours."""
    above = Path(tempfile.gettempdir()) / f"dovetail-{os.getuid()}"
    above.mkdir(mode=0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid() or above.stat().st_mode & 0o077:
        raise UsageError(f"{above} is not ours alone: remove it")
    return above / name
