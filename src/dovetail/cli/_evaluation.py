"""`dovetail eval`: exactly the weights that were named, on seeded resets, with nobody helping."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dovetail.cli._runs import find_run
from dovetail.cli._session import STOPPED, shown
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, rate_line, say
from dovetail.config.load import load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Algorithm
from dovetail.core.errors import CheckpointError, StoreError, UsageError
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome, WeightSnapshot
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.assembly.arms import arm_configs, arm_groups
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.assembly.fleet import build_fleet
from dovetail.runs.evaluate import evaluation_episodes
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

__all__ = ["Source", "evaluate", "find_source"]

_VERSION_FILE = re.compile(r"v(\d+)\.json")


def evaluate(
    target: str,
    *,
    overrides: tuple[str, ...] = (),
    num_episodes: int | None,
    version: int | None,
    best: bool = False,
    seed: int | None,
    runs_dir: Path,
    viewer: bool,
    realtime: bool,
    quiet: bool,
) -> int:
    source = find_source(target, version=version, best=best, runs_dir=runs_dir)
    config = load_saved(source.folder.path, overrides, quiet=True).config if overrides else source.folder.config
    config = shown(config, viewer=viewer, realtime=realtime)
    elsewhere = config.policy.type == "remote"  # then the weights are the server's
    if seed is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
    for robot, own in _arms(config):
        code = _evaluate(
            source, own, robot, overrides=overrides, num_episodes=num_episodes, elsewhere=elsewhere, quiet=quiet
        )
        if code:
            return code
    return 0


def _arms(config: RunConfig) -> list[tuple[str | None, RunConfig]]:
    """One of each kind, by name; of a run without any, its robot."""
    if not config.cluster.robots:
        return [(None, config)]
    own = arm_configs(config)
    return [(first, own[first]) for first, *_ in arm_groups(config)]


def _evaluate(
    source: Source,
    config: RunConfig,
    robot: str | None,
    *,
    overrides: tuple[str, ...],
    num_episodes: int | None,
    elsewhere: bool,
    quiet: bool,
) -> int:
    with StopFlag() as stop:
        station = build_assembly(config, parts=source.folder.parts, should_stop=stop, name=robot)
        try:
            snapshot = None if elsewhere else source.snapshot(station)
            count = num_episodes or config.run.eval_episodes
            rate = _play(station, snapshot, count, config_hash=source.folder.config_hash, quiet=quiet)
        finally:
            station.close()
    if rate is None or rate.episodes < count:
        say(f"stopped after {rate.episodes if rate else 0} of {count} episodes; nothing was written")
        return STOPPED
    label = source.label(snapshot) if snapshot else "the remote policy"
    console.print(rate_line(label if robot is None else f"{label}, {robot}", rate), soft_wrap=True)
    facts = {
        **({} if robot is None else {"robot": robot}),
        "weights": label,
        "seed": config.run.seed,
        "settings": list(overrides),
        **rate.to_json(),
    }
    if snapshot is not None and source.checkpoint is None:
        facts["version"] = snapshot.version
    try:
        source.folder.event("eval", **facts)
    except OSError as error:  # somebody else's run may be looked at too
        say(f"not noted in {source.folder.path / 'events.jsonl'}: {error.strerror}")
    return 0


def _play(
    station: Assembly, snapshot: WeightSnapshot | None, count: int, *, config_hash: str, quiet: bool
) -> Rate | None:
    successes = played = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=count)
        for episode in evaluation_episodes(station, snapshot, num_episodes=count, config_hash=config_hash):
            if episode.outcome is Outcome.ABORTED:
                break
            played += 1
            successes += episode.outcome is Outcome.SUCCESS
            bar.update(task, completed=played, description=f"evaluating, {successes} of {played} succeeded")
    return Rate(successes=successes, episodes=played) if played else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights come from: a checkpoint of the learner, or a published version."""

    folder: RunFolder
    checkpoint: Path | None = None
    version: int | None = None

    def snapshot(self, station: Assembly) -> WeightSnapshot:
        if self.checkpoint is not None:
            return _from_checkpoint(self.checkpoint, self.folder.config, station)
        store = DiskWeightStore(self.folder.weights)
        if self.version is not None:
            versions = store.versions()
            if self.version not in versions:
                have = ", ".join(map(str, versions)) or "none"
                raise UsageError(
                    f"run {self.folder.path} has no weights of version {self.version}; it has: {have}"
                )
            return store.load(self.version)
        latest = store.latest()
        if latest is None:
            raise UsageError(f"run {self.folder.path} has published no weights yet: let it run first")
        return latest

    def label(self, snapshot: WeightSnapshot) -> str:
        if self.checkpoint is None:
            return f"weights version {snapshot.version}"
        return "best checkpoint" if self.checkpoint.name == "best" else "checkpoint"


def find_source(target: str, *, version: int | None, best: bool = False, runs_dir: Path) -> Source:
    path = Path(target)
    if best:
        if version is not None:
            raise UsageError("--best names a checkpoint, which has no versions: leave out one of the two")
        folder = RunFolder.open(find_run(target, runs_dir))
        if not (folder.checkpoints / "best").is_dir():
            raise UsageError(
                f"run {folder.path} has no best checkpoint yet: it comes with run.eval_every_steps, or with 20 episodes"
            )
        return Source(folder=folder, checkpoint=folder.checkpoints / "best")
    named = _VERSION_FILE.fullmatch(path.name)
    if named and path.is_file():
        return Source(folder=RunFolder.open(path.parent.parent), version=int(named[1]))
    if path.name == "weights" and path.is_dir():
        return Source(folder=RunFolder.open(path.parent), version=version)
    checkpoint = path.parent if path.is_file() else path
    if checkpoint.parent.name == "checkpoints" and checkpoint.exists():
        if version is not None:
            raise UsageError("a checkpoint has no versions: leave out --version, or name the run")
        return Source(folder=RunFolder.open(checkpoint.parent.parent), checkpoint=checkpoint)
    if path.is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint: name a run, RUN/checkpoints/best or RUN/weights/v00000009.json"
        )
    return Source(folder=RunFolder.open(find_run(target, runs_dir)), version=version)


def _from_checkpoint(path: Path, run: RunConfig, station: Assembly) -> WeightSnapshot:
    """The policy inside the learner's state: where several arms learned, the one of all of them."""
    config = station.config
    state, _ = load_checkpoint(path)
    prefix = "algorithm/"
    policy = build_fleet(run).trainable() if run.cluster.robots else station.trainable()
    algorithm: Algorithm = config.algorithm.build(policy=policy, seed=config.run.seed)
    try:
        algorithm.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    except StoreError as error:
        raise CheckpointError(f"checkpoint {path} does not fit this run's policy: {error}") from error
    return WeightSnapshot(version=0, components=algorithm.policy_weights(), hashes={})
