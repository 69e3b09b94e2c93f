"""`dovetail serve`: a policy server for robots whose own computer is too slow for the policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir
from dovetail.core.errors import UsageError

if TYPE_CHECKING:
    from dovetail.policies.openpi.keys import KeyMap
    from dovetail.robot_host.following_policy import FollowingPolicy
    from dovetail.serve.openpi_server import OpenpiServer
    from dovetail.serve.server import PolicyServer

__all__ = ["register"]

PORT = 7411
Protocol = Literal["dovetail", "openpi"]
Log = Callable[[str], None]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail serve first-try --host 0.0.0.0")(serve)


def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT",
            help="A run, RUN/checkpoints/last, RUN/weights/v00000009.json, a folder with published weights, or a recipe or "
            "config whose policy has a checkpoint; with --receive any recipe or config.",
        ),
    ],
    version: Annotated[
        int | None, typer.Option("--version", help="Serve only this version of the weights.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="File with the token that robots need. Default: RUN/serve.token, created if missing.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="Where it computes: cpu, auto, cuda or cuda:1. Default: policy.device of the run."
        ),
    ] = None,
    num_threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads. Default: policy.num_threads of the run.")
    ] = None,
    protocol: Annotated[
        Protocol,
        typer.Option("--protocol", help="dovetail: for policy `remote`. openpi: for any client of openpi."),
    ] = "dovetail",
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="NAME|FILE",
            help="openpi: keys of the clients: droid, aloha, libero, lerobot or a file. Default: the policy's.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="For a published folder: recipe or file with the robot, and a policy section for it.",
            show_default=False,
        ),
    ] = None,
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, max=64, help="Most requests that are computed at once.")
    ] = 8,
    receive: Annotated[
        bool,
        typer.Option(
            "--receive", help="Take the weights from the arms of a run that learns. The target may be its config."
        ),
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only address and token file.")] = False,
) -> None:
    """Serve a policy to robots with policy `remote`, or to clients of openpi. It follows a run that learns.

    Ctrl-C ends it. Copy the token file to each robot by other means.
    """
    from dovetail.cli._stop import StopFlag
    from dovetail.cli._terminal import console, say

    with console.status("loading torch"):
        import torch

        from dovetail.policies.remote.handshake import read_token

    if receive and (protocol != "dovetail" or version is not None):
        raise UsageError(
            "--receive is for --protocol dovetail, without --version: the run says which weights to use"
        )
    given_keys = _read_keys(keys, protocol=protocol)
    torch.set_num_threads(1)  # policy.num_threads may allow more
    torch.set_flush_denormal(True)
    place = {"device": device, "num_threads": num_threads}
    place = {name: value for name, value in place.items() if value is not None}
    log = (lambda line: None) if quiet else say
    with StopFlag() as stop:
        with console.status("loading weights"):
            if receive:
                opened = _open_config(target, runs_dir)
            else:
                opened = _open_target(target, version, runs_dir, config=config, keys=given_keys)
            token_file = token_file or opened.make_token()
            token = read_token(token_file)
            policy = opened.policy(log, place)
        server = _make_server(
            policy,
            protocol=protocol,
            token=token,
            keys=opened.keys or given_keys,
            receive=receive,
            max_rows=max_batch,
            log=log,
        )
        address = server.listen(host, port)
        with policy:
            say(f"ready on {address}, token in {token_file}")
            server.run(stop)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # ending the interpreter while a thread is inside torch would abort


@dataclass(frozen=True)
class _Opened:
    """What is served."""

    make_token: Callable[[], Path]  # the default token file
    policy: Callable[[Log, Mapping[str, Any]], FollowingPolicy]
    keys: KeyMap | None = None  # None: those of the command line, or the policy's own


def _open_target(
    target: str, version: int | None, runs_dir: Path, *, config: Path | None, keys: KeyMap | None
) -> _Opened:
    from dovetail.api.names import list_runs
    from dovetail.config.load import recipes

    path = Path(target)
    is_folder = (path / "config.json").is_file()
    is_config = (path.is_file() and path.suffix in (".yaml", ".yml")) or (
        target in (one.name for one in recipes()) and target not in list_runs(runs_dir)
    )
    if config is not None and not is_folder:
        raise UsageError("--config is for a folder with published weights: a run or a config has its own settings")
    if version is not None and (is_folder or is_config):
        raise UsageError("published weights have no versions: leave out --version")
    if is_folder:
        return _open_published(path, runs_dir, config=config, keys=keys)
    if is_config:
        return _open_policy(target, runs_dir)
    return _open_run(target, version, runs_dir)


def _open_published(folder: Path, runs_dir: Path, *, config: Path | None, keys: KeyMap | None) -> _Opened:
    """A published folder: with a config for its robot, or alone."""
    from dovetail.api.policy import published_policy
    from dovetail.config.schema import PluginSection
    from dovetail.policies.published import describe

    if config is not None:
        return _open_policy(str(config), runs_dir, f"policy.checkpoint={folder}")
    found = describe(folder, keys=keys)
    section = PluginSection.parse("policy", found.section)
    return _Opened(
        make_token=lambda: _shared_token(runs_dir),
        policy=lambda log, place: published_policy(section, found.robot, log=log, place=place),
        keys=found.keys,
    )


def _open_policy(source: str, runs_dir: Path, *overrides: str) -> _Opened:
    """The policy of a recipe or config file, which has published weights."""
    from dovetail.api.policy import published_policy, robot_of_config
    from dovetail.config.load import load

    config = load([source], overrides)
    return _Opened(
        make_token=lambda: _shared_token(runs_dir),
        policy=lambda log, place: published_policy(config.policy, robot_of_config(config), log=log, place=place),
    )


def _shared_token(runs_dir: Path) -> Path:
    """The token of policies without a run."""
    from dovetail.policies.remote.handshake import make_token

    runs_dir.mkdir(parents=True, exist_ok=True)
    return make_token(runs_dir / "serve.token")


def _open_run(target: str, version: int | None, runs_dir: Path) -> _Opened:
    from dovetail.api.policy import following_policy
    from dovetail.api.weights import acting_weights
    from dovetail.policies.remote.handshake import make_token

    source = acting_weights(target, version=version, runs_dir=runs_dir)
    return _Opened(
        make_token=lambda: make_token(_own_token_file(source.named.path)),
        policy=lambda log, place: following_policy(source, log=log, place=place),
    )


def _open_config(target: str, runs_dir: Path) -> _Opened:
    """A run's folder, or the recipe or config file of a run that learns on another machine."""
    from dovetail.api.names import find_run
    from dovetail.api.policy import receiving_policy
    from dovetail.config.load import load
    from dovetail.core.errors import RunFolderError
    from dovetail.policies.remote.handshake import make_token
    from dovetail.runs.folder import RunFolder

    try:
        folder: RunFolder | None = RunFolder.open(find_run(target, runs_dir))
    except RunFolderError:
        folder = None
    config = folder.config if folder is not None else load([target])

    def default_token() -> Path:
        return _shared_token(runs_dir) if folder is None else make_token(_own_token_file(folder.path))

    return _Opened(
        make_token=default_token,
        policy=lambda log, place: receiving_policy(config, folder=folder, log=log, place=place),
    )


def _make_server(
    policy: FollowingPolicy,
    *,
    protocol: Protocol,
    token: bytes,
    keys: KeyMap | None,
    receive: bool,
    max_rows: int,
    log: Log,
) -> OpenpiServer | PolicyServer:
    from dovetail.policies.openpi.keys import key_map
    from dovetail.serve.openpi_server import OpenpiServer
    from dovetail.serve.server import PolicyServer
    from dovetail.serve.weights import ServedWeights

    if protocol == "openpi":
        return OpenpiServer(
            policy, token=token, keys=None if keys is None else key_map(keys), max_rows=max_rows, log=log
        )
    weights = ServedWeights(policy, max_bytes=policy.max_weight_bytes if receive else 0, log=log)
    return PolicyServer(policy, token=token, weights=weights, max_rows=max_rows, log=log)


def _own_token_file(run: Path) -> Path:
    """Refuse a token that came with a folder from elsewhere: its sender knows it."""
    from dovetail.config.trust import is_trusted

    path = run / "serve.token"
    if path.exists() and not is_trusted(run):
        raise UsageError(
            f"{path} may have come with the folder, which was not made by you on this machine or was copied. Delete it, "
            f"name another with --token-file, or run `dovetail trust {run}`"
        )
    return path


def _read_keys(keys: str | None, *, protocol: Protocol) -> KeyMap | None:
    """The keys as given: `like` is not yet replaced by what it stands for."""
    from dovetail.core.errors import did_you_mean
    from dovetail.policies.openpi.keys import BUILTIN_KEYS, KeyMap

    if keys is None:
        return None
    if protocol != "openpi":
        raise UsageError("--keys is for --protocol openpi: policy `remote` sends the policy's own observations")
    if keys in BUILTIN_KEYS:
        return KeyMap.from_mapping({"like": keys})
    if not Path(keys).is_file():
        hint = did_you_mean(keys, BUILTIN_KEYS)
        raise UsageError(f"--keys {keys} is no file and none of {', '.join(BUILTIN_KEYS)}.{hint}")
    from dovetail.config.load import load_section

    return load_section(KeyMap, "keys", [keys])
