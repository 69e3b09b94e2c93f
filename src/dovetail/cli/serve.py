"""`dovetail serve`: a policy server for robots whose own computer is too slow for the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="A run, RUN/checkpoints/last, RUN/weights/v00000009.json, a folder with published weights, or a recipe or "
        "config whose policy has a checkpoint; with --receive any recipe or config.",
    ),
]
Version = Annotated[
    int | None, typer.Option("--version", help="Serve only this version of the weights.", show_default=False)
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="File with the token that robots need. Default: RUN/serve.token, created if missing."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="Where it computes: cpu, auto, cuda or cuda:1. Default: policy.device of the run."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads. Default: policy.num_threads of the run.")
]
Protocol = Annotated[
    Literal["dovetail", "openpi"],
    typer.Option("--protocol", help="dovetail: for policy `remote`. openpi: for any client of openpi."),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="NAME|FILE",
        help="openpi: keys of the clients: droid, aloha, libero, lerobot or a file. Default: the policy's.",
    ),
]
RobotConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="For a published folder: recipe or file with the robot, and a policy section for it.",
        show_default=False,
    ),
]
MaxBatch = Annotated[
    int, typer.Option("--max-batch", min=1, max=64, help="Most requests that are computed at once.")
]
Receive = Annotated[
    bool,
    typer.Option(
        "--receive", help="Take the weights from the arms of a run that learns. The target may be its config."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only address and token file.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail serve first-try --host 0.0.0.0")(serve)


def serve(
    target: Target,
    version: Version = None,
    host: Host = "127.0.0.1",
    port: Port = 7411,
    token_file: TokenFile = None,
    device: Device = None,
    num_threads: Threads = None,
    protocol: Protocol = "dovetail",
    keys: Keys = None,
    config: RobotConfig = None,
    max_batch: MaxBatch = 8,
    receive: Receive = False,
    runs_dir: RunsDir = RUNS_DIR,
    quiet: Quiet = False,
) -> None:
    """Serve a policy to robots with policy `remote`, or to clients of openpi. It follows a run that learns.

    Ctrl-C ends it. Copy the token file to each robot by other means.
    """
    from dovetail.cli._terminal import console

    with console.status("loading torch"):
        from dovetail.cli import _serving

    place = {"device": device, "num_threads": num_threads}
    _serving.serve_policy(
        target,
        version=version,
        host=host,
        port=port,
        token_file=token_file,
        place={name: value for name, value in place.items() if value is not None},
        protocol=protocol,
        keys=keys,
        config=config,
        max_batch=max_batch,
        receive=receive,
        runs_dir=runs_dir,
        quiet=quiet,
    )
