"""`dovetail serve`: the policy of a run, with its newest weights, for whoever knows the token."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from dovetail.cli._evaluation import Source, find_source
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.core.contracts import Policy
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import WeightSnapshot
from dovetail.episodes.log import EpisodeLog
from dovetail.policies.remote.handshake import read_token
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.assembly.build import build_station
from dovetail.runs.assembly.policy_parts import build_policy
from dovetail.runs.folder import RunFolder
from dovetail.serve.server import PolicyServer
from dovetail.weights.store import DiskWeightStore

__all__ = ["serve"]


def serve(
    target: str,
    *,
    version: int | None,
    host: str,
    port: int,
    token_file: Path | None,
    runs_dir: Path,
    quiet: bool,
) -> NoReturn:
    """Does not return: the process ends when it is asked to, or with an error before it listens."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    source = find_source(target, version=version, runs_dir=runs_dir)
    token_file = token_file or _made_token(source.folder.path / "serve.token")
    token = read_token(token_file)
    tell: Callable[[str], None] = (lambda line: None) if quiet else say
    with StopFlag() as stop:
        with console.status("loading weights"):
            policy = _policy(source, tell)
        server = PolicyServer(policy, token=token, tell=tell)
        address = server.listen(host, port)
        with policy:
            say(f"ready on {address}, token in {token_file}")
            server.run(stop)
    _leave()


def _leave() -> NoReturn:
    """At once: a thread that still thinks would be torn out of torch by the interpreter's end, which aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _policy(source: Source, tell: Callable[[str], None]) -> FollowingPolicy:
    config = source.folder.config
    if config.policy.type == "remote":
        raise UsageError(f"run {source.folder.path} itself asks a policy server: serve the run that it asks")
    robot = _robot_spec(source.folder)
    store = DiskWeightStore(source.folder.weights)
    snapshot = _snapshot(source, store)
    is_followed = source.checkpoint is None and source.version is None
    policy = FollowingPolicy(
        lambda: _made_policy(source.folder, robot), snapshot, store=store if is_followed else None, tell=tell
    )
    tell(f"policy '{policy.spec.name}', {source.label(snapshot)}" + (", and newer ones" if is_followed else ""))
    return policy


def _made_policy(folder: RunFolder, robot: RobotSpec) -> Policy:
    config = folder.config
    return build_policy(config.policy, robot=robot, seed=config.run.seed, parts=folder.parts)


def _robot_spec(folder: RunFolder) -> RobotSpec:
    """As the newest episode has it: the robot's drivers need not be installed here. Before the first, it is built."""
    log = EpisodeLog(folder.episodes)
    for episode_id in log.ids()[-1:]:
        return log.manifest(episode_id).robot
    station = build_station(folder.config)
    try:
        return station.robot.spec
    finally:
        station.close()


def _snapshot(source: Source, store: DiskWeightStore) -> WeightSnapshot:
    if source.checkpoint is not None:
        station = build_station(source.folder.config, parts=source.folder.parts)
        try:
            return source.snapshot(station)
        finally:
            station.close()
    versions = store.versions()
    if source.version is not None and source.version not in versions:
        have = ", ".join(map(str, versions)) or "none"
        raise UsageError(f"run {source.folder.path} has no weights of version {source.version}; it has: {have}")
    snapshot = store.latest() if source.version is None else store.load(source.version)
    if snapshot is None:
        raise UsageError(f"run {source.folder.path} has published no weights yet: let it run first")
    return snapshot


def _made_token(path: Path) -> Path:
    """The token that is there, or a new one: whole from the first moment, and readable by its owner alone."""
    if path.exists():
        return path
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):  # somebody else was first: then theirs counts
            os.link(beside, path)
        beside.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot make a token in {path.parent} ({error.strerror}): name a --token-file"
        ) from error
    return path
