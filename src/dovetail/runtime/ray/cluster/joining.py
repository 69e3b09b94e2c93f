"""Join a cluster with this machine, and leave it.

`join` starts a keeper, which keeps a Ray node running until `leave`: after a lost connection the head removes the machine,
and the keeper joins again. A folder under the temp folder has the machine's state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
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
from dovetail.processes.child import ChildProcess
from dovetail.runtime.ray.cluster.environment import ray_variables
from dovetail.runtime.ray.cluster.node_keeper import PLAN, STATE
from dovetail.runtime.ray.cluster.process_marks import MARK, kill_marked, marked_processes, wait_for_end
from dovetail.runtime.ray.cluster.token import token_path

__all__ = ["Membership", "join", "leave", "membership", "this_machine"]

_START_S = 120.0
_LEAVE_S = 30.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The state of this machine's keeper."""

    machine: str
    head_address: str
    keeper: int
    state: str  # joining, joined, lost or failed
    problem: str = ""

    @property
    def has_keeper(self) -> bool:
        return self.keeper in marked_processes(_folder(self.machine))


def this_machine(config: ClusterConfig, *, named: str | None = None) -> str:
    """The name of this machine: `named`, or found by its host name or address."""
    if not config.machines:
        raise UsageError("the file has no machines: list them in cluster.machines")
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
        raise UsageError(f"cannot find out which machine {host} is: add --as {all_names}")
    return found[0]


def _is_ours(address: str) -> bool:
    """Whether a network interface of this machine has the address. Every machine has the loopback addresses."""
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
    """Start this machine's keeper and wait until it has joined. Does nothing if it has joined already."""
    known = membership(name)
    if known is not None and known.has_keeper:
        if known.head_address != config.head_address:
            raise UsageError(
                f"machine '{name}' is in the cluster at {known.head_address}: run `dovetail cluster leave` first"
            )
    else:
        leave(name)  # cleans up after a killed keeper
        _check_ports(name, config.machines[name])
        _start_keeper(config, name)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        known = membership(name)
        if known is not None and known.state == "joined":
            return known
        if known is not None and (known.state == "failed" or not known.has_keeper):
            problem = known.problem or "its keeper died"
            leave(name)
            raise FailureError(f"machine '{name}' could not join: {problem}")
        time.sleep(_POLL_S)
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
    folder, machine, head_address = _folder(name), config.machines[name], config.head_address
    assert head_address is not None
    folder.mkdir(mode=0o700)
    loopback = machine.head and machine.address == LOOPBACK
    plan = {
        "machine": name,
        "head_address": head_address,
        "command": _command(config, name, machine, folder),
        "environment": ray_variables(config.detection, token=token_path(config), loopback=loopback),
    }
    write_atomic(folder / PLAN, json.dumps(plan).encode())
    with (folder / "keeper.log").open("ab") as log:
        keeper = ChildProcess(
            "the node keeper",
            "dovetail.runtime.ray.cluster.node_keeper",
            [str(folder)],
            stdout=log,
            stderr=log,
            environment={MARK: str(folder)},
            new_session=True,
        )
    state = {"machine": name, "head_address": head_address, "keeper": keeper.pid, "state": "joining"}
    if not (folder / STATE).exists():
        write_atomic(folder / STATE, json.dumps(state).encode())


def _command(config: ClusterConfig, name: str, machine: Machine, folder: Path) -> list[str]:
    """Arguments of `ray start`."""
    ports = machine.ports
    options: dict[str, Any] = {
        "node-ip-address": machine.address,
        "node-manager-port": ports.node,
        "object-manager-port": ports.objects,
        "runtime-env-agent-port": ports.agent,
        "min-worker-port": ports.workers[0],
        "max-worker-port": ports.workers[1],
        "object-store-memory": config.object_store_mb << 20,
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
        options["address"] = config.head_address
    given = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return [*given, "--block", "--disable-usage-stats", *(["--head"] if machine.head else [])]


def leave(name: str) -> bool:
    """End this machine's node and everything that runs on it. Returns whether there was any. May be called again."""
    folder = _folder(name)
    pids = marked_processes(folder)
    known = membership(name) if folder.exists() else None
    if known is not None and known.keeper in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(known.keeper, signal.SIGTERM)
        wait_for_end(folder, seconds=_LEAVE_S)
    kill_marked(folder)  # if the keeper was killed
    if not wait_for_end(folder, seconds=_LEAVE_S):
        raise FailureError(
            f"processes of machine '{name}' do not end: {', '.join(map(str, marked_processes(folder)))}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    return bool(pids)


def _folder(name: str) -> Path:
    """A short path, because of the sockets in it. Only this user may read it."""
    parent = Path(tempfile.gettempdir()) / f"dovetail-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.is_symlink() or parent.stat().st_uid != os.getuid() or parent.stat().st_mode & 0o077:
        raise UsageError(f"other users can write to {parent}: remove it")
    return parent / name
