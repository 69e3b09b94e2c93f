"""`dovetail serve`: what is served, its token, and the server of the chosen protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dovetail.api.names import find_run, list_runs
from dovetail.api.policy import following_policy, published_policy, receiving_policy, robot_of_config
from dovetail.api.weights import acting_weights
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.config.load import load, load_section, recipes
from dovetail.config.schema import PluginSection
from dovetail.config.trust import is_trusted
from dovetail.core.errors import RunFolderError, UsageError, did_you_mean
from dovetail.policies.openpi.keys import BUILTIN_KEYS, KeyMap, key_map
from dovetail.policies.published import describe
from dovetail.policies.remote.handshake import make_token, read_token
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.folder import RunFolder
from dovetail.serve.openpi_server import OpenpiServer
from dovetail.serve.server import PolicyServer
from dovetail.serve.weights import ServedWeights

__all__ = ["serve_policy"]

Protocol = Literal["dovetail", "openpi"]
Log = Callable[[str], None]


def serve_policy(
    target: str,
    *,
    version: int | None,
    host: str,
    port: int,
    token_file: Path | None,
    place: Mapping[str, Any],
    protocol: Protocol,
    keys: str | None,
    config: Path | None,
    max_batch: int,
    receive: bool,
    runs_dir: Path,
    quiet: bool,
) -> None:
    """Serve until Ctrl-C, and end the process."""
    if receive and (protocol != "dovetail" or version is not None):
        raise UsageError(
            "--receive is for --protocol dovetail, without --version: the run says which weights to use"
        )
    given_keys = _read_keys(keys, protocol=protocol)
    torch.set_num_threads(1)  # policy.num_threads may allow more
    torch.set_flush_denormal(True)
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
    config = load([source], overrides)
    return _Opened(
        make_token=lambda: _shared_token(runs_dir),
        policy=lambda log, place: published_policy(config.policy, robot_of_config(config), log=log, place=place),
    )


def _shared_token(runs_dir: Path) -> Path:
    """The token of policies without a run."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    return make_token(runs_dir / "serve.token")


def _open_run(target: str, version: int | None, runs_dir: Path) -> _Opened:
    source = acting_weights(target, version=version, runs_dir=runs_dir)
    return _Opened(
        make_token=lambda: make_token(_own_token_file(source.named.path)),
        policy=lambda log, place: following_policy(source, log=log, place=place),
    )


def _open_config(target: str, runs_dir: Path) -> _Opened:
    """A run's folder, or the recipe or config file of a run that learns on another machine."""
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
    if protocol == "openpi":
        return OpenpiServer(
            policy, token=token, keys=None if keys is None else key_map(keys), max_rows=max_rows, log=log
        )
    weights = ServedWeights(policy, max_bytes=policy.max_weight_bytes if receive else 0, log=log)
    return PolicyServer(policy, token=token, weights=weights, max_rows=max_rows, log=log)


def _own_token_file(run: Path) -> Path:
    """Refuse a token that came with a folder from elsewhere: its sender knows it."""
    path = run / "serve.token"
    if path.exists() and not is_trusted(run):
        raise UsageError(
            f"{path} may have come with the folder, which was not made by you on this machine or was copied. Delete it, "
            f"name another with --token-file, or run `dovetail trust {run}`"
        )
    return path


def _read_keys(keys: str | None, *, protocol: Protocol) -> KeyMap | None:
    """The keys as given: `like` is not yet replaced by what it stands for."""
    if keys is None:
        return None
    if protocol != "openpi":
        raise UsageError("--keys is for --protocol openpi: policy `remote` sends the policy's own observations")
    if keys in BUILTIN_KEYS:
        return KeyMap.from_mapping({"like": keys})
    if not Path(keys).is_file():
        hint = did_you_mean(keys, BUILTIN_KEYS)
        raise UsageError(f"--keys {keys} is no file and none of {', '.join(BUILTIN_KEYS)}.{hint}")
    return load_section(KeyMap, "keys", [keys])
