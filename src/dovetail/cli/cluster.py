"""`dovetail cluster`: join a cluster, show it, leave it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dovetail.cli._terminal import console, say
from dovetail.core.errors import FailureError, UsageError

if TYPE_CHECKING:  # pydantic is slow to import
    from dovetail.config.cluster import ClusterConfig

__all__ = ["register"]

_POLL_S = 0.5
_ROLE = ("name", "host", "health", "starts")
_NOT_SHOWN = (*_ROLE, "pid", "started_unix_s", "stop_requested")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="File with the `cluster` section, the same on every machine."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MACHINE",
        help="Name of this machine in cluster.machines. Default: found by host name or address.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Connect several machines. Every machine joins with the same file.", no_args_is_help=True
    )
    group.command(epilog="Example: dovetail cluster join lab.yaml")(join)
    group.command(epilog="Example: dovetail cluster status lab.yaml")(status)
    group.command(epilog="Example: dovetail cluster leave lab.yaml")(leave)
    app.add_typer(group, name="cluster")


def join(
    files: Files,
    name: As = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay in the foreground; Ctrl-C leaves the cluster.")
    ] = False,
) -> None:
    """Join the cluster, or start it on the head, in the background until `dovetail cluster leave`.

    A machine that loses its connection joins again by itself.
    """
    config = _read(files)
    from dovetail.runtime.ray.cluster import joining
    from dovetail.runtime.ray.cluster.token import check_token, make_token, token_path

    machine = joining.this_machine(config, named=name)
    is_head, token = config.machines[machine].head, token_path(config)
    if is_head:
        is_new = make_token(token)
        check_token(token)
        if is_new and len(config.machines) > 1:
            say(f"created a token in {token}: copy the file to the same path on the other machines (scp -p)")
    else:
        from dovetail.runtime.ray.cluster.connection import check_access

        check_access(config)
    with console.status(f"joining as {machine}"):
        membership = joining.join(config, machine)
    say(f"{machine} is {'the head of' if is_head else 'in'} the cluster at {membership.head_address}")
    if wait:
        _stay(machine)


def status(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show connected machines, missing machines and runs. Exit code 1 if a machine of the file is missing."""
    config = _read(files)
    if config.head_address is None:
        raise UsageError("the file has no cluster: set cluster.machines or cluster.address")
    with console.status("reading the status"):
        from dovetail.runtime.ray.driver.status import cluster_status

        found = cluster_status(config)
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
        raise typer.Exit(1 if found["missing"] else 0)
    console.print(_machines(found["machines"]))
    for machine in found["missing"]:
        say(
            f"{machine['name']} ({machine['address']}) is missing: run `dovetail cluster join {' '.join(files)}` on it"
        )
    for machine in found["machines"]:
        if not machine["same_version"]:
            say(f"{machine['host']} has Dovetail {machine['version']}: install the same version everywhere")
    for run in found["runs"]:
        _show_run(run)
    if not found["runs"]:
        say("no runs")
    raise typer.Exit(1 if found["missing"] else 0)


def leave(files: Files, name: As = None) -> None:
    """Leave the cluster. This ends its roles on this machine; on the head, it ends the cluster."""
    config = _read(files)
    from dovetail.runtime.ray.cluster import joining

    machine = joining.this_machine(config, named=name)
    with console.status("leaving"):
        was_in = joining.leave(machine)
    say(f"{machine} has left the cluster" if was_in else f"{machine} was not in a cluster")


def _stay(machine: str) -> None:
    from dovetail.runtime.ray.cluster import joining

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    shown = "joined"
    try:
        while (known := joining.membership(machine)) is not None and known.has_keeper:
            if known.state != shown:
                shown = known.state
                say("connected again" if shown == "joined" else f"connection lost, trying again: {known.problem}")
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with console.status("leaving"):
            joining.leave(machine)
        return
    if joining.leave(machine):
        raise FailureError(f"{machine} has left the cluster: its keeper process was killed")


def _machines(machines: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("machine", "host", "address", "", "offers", box=None, pad_edge=False)
    for machine in sorted(machines, key=lambda one: (not one["head"], one["address"])):
        state = "lost" if not machine["alive"] else "head" if machine["head"] else "connected"
        offers = ", ".join(f"{name} {amount:g}" for name, amount in machine["resources"].items())
        table.add_row(machine["name"] or "-", machine["host"], machine["address"], state, offers)
    return table


def _show_run(run: Mapping[str, Any]) -> None:
    """A line with the facts of a run, and a row for each of its roles."""
    say(f"run {run['run']}: {_facts(run, without=('run', 'roles'))}")
    table = Table("role", "host", "health", "starts", "reports", box=None, pad_edge=False)
    for role in run.get("roles", ()):
        shown = [str(role.get(name, "-")) for name in _ROLE]
        table.add_row(*shown, _facts(role, without=_NOT_SHOWN))
    if table.row_count:
        console.print(table)


def _facts(given: Mapping[str, Any], *, without: Sequence[str]) -> str:
    """Numbers and texts in one line; --json has everything."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in given.items()
        if name not in without and isinstance(value, int | float | str) and value != ""
    )


def _read(files: Sequence[str]) -> ClusterConfig:
    from dovetail.config.cluster import ClusterConfig
    from dovetail.config.load import load_section

    return load_section(ClusterConfig, "cluster", files)
