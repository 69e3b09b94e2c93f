"""Trained weights by name: a run, one of its published versions, or a checkpoint of its learner."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.api.names import RUNS_DIR, find_run
from dovetail.config.plugins import resolve
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import BringsWeights, NamesCheckpoint
from dovetail.core.errors import CheckpointError, DovetailError, StoreError, UsageError
from dovetail.core.types import WeightSnapshot
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

if TYPE_CHECKING:  # loads torch
    from dovetail.core.contracts import Algorithm
    from dovetail.runs.assembly.build import Assembly

__all__ = ["WeightSource", "acting_weights", "brings_weights", "find_weights"]

_VERSION_FILE = re.compile(r"v(\d+)\.json")
_LEARNER_PREFIX = "algorithm/"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """A checkpoint of the learner, or a published version. Neither: the newest version."""

    folder: RunFolder
    checkpoint: Path | None = None
    version: int | None = None
    deployed_in: RunFolder | None = None
    """The run that was named, if these weights act for it."""

    @property
    def named(self) -> RunFolder:
        """The run that was named: its STOP, its token and its events."""
        return self.deployed_in or self.folder

    @property
    def is_own(self) -> bool:
        """Whether the run that was named has trained them."""
        return self.named.path.resolve() == self.folder.path.resolve()

    def snapshot(self, assembly: Assembly | None = None) -> WeightSnapshot:
        """Read the weights. A checkpoint needs the run's policy, which `assembly` has; without one, it is built."""
        if self.checkpoint is not None:
            return self._from_checkpoint(self.checkpoint, assembly)
        store = DiskWeightStore(self.folder.weights)
        if self.version is not None and self.version not in (versions := store.versions()):
            have = ", ".join(map(str, versions)) or "none"
            raise UsageError(f"run {self.folder.path} has no weights of version {self.version}; it has: {have}")
        snapshot = store.latest() if self.version is None else store.load(self.version)
        if snapshot is None:
            raise UsageError(f"run {self.folder.path} has published no weights yet: let it run first")
        return snapshot

    def label(self, snapshot: WeightSnapshot) -> str:
        if self.checkpoint is None:
            what = f"weights version {snapshot.version}"
        else:
            what = "best checkpoint" if self.checkpoint.name == "best" else "checkpoint"
        if self.deployed_in is None:
            return what
        return f"{what}{'' if self.is_own else f' of {self.folder.path}'}, deployed in {self.deployed_in.path}"

    def _from_checkpoint(self, path: Path, assembly: Assembly | None) -> WeightSnapshot:
        """The policy in the learner's state; if several arms learned, the policy that they share."""
        from dovetail.learn.checkpoint import load_checkpoint
        from dovetail.runs.assembly.build import build_assembly
        from dovetail.runs.assembly.fleet import build_fleet

        run = self.folder.config
        state, _ = load_checkpoint(path)
        built = assembly or build_assembly(run, components=self.folder.components)
        try:
            policy = build_fleet(run).trainable() if run.cluster.robots else built.trainable()
            algorithm: Algorithm = built.config.algorithm.build(policy=policy, seed=built.config.run.seed)
            algorithm.load_state_dict(
                {k.removeprefix(_LEARNER_PREFIX): v for k, v in state.items() if k.startswith(_LEARNER_PREFIX)}
            )
        except StoreError as error:
            raise CheckpointError(f"checkpoint {path} does not fit this run's policy: {error}") from error
        finally:
            if assembly is None:
                built.close()
        return WeightSnapshot(version=0, components=algorithm.policy_weights(), hashes={})


def brings_weights(config: RunConfig, *, run: RunConfig) -> bool:
    """Whether the policy has weights of its own, from a server or a published folder, and not those of the run. A policy
    that started from a folder has those of the run that trained it."""
    policy = config.policy
    if isinstance(resolve("policy", policy.type), BringsWeights):
        return True
    return isinstance(policy.config, NamesCheckpoint) and bool(policy.config.checkpoint) and policy != run.policy


def find_weights(
    target: str | Path, *, version: int | None = None, best: bool = False, runs_dir: Path = RUNS_DIR
) -> WeightSource:
    """The weights that a name stands for: a run, RUN/checkpoints/best, RUN/weights or RUN/weights/v00000009.json."""
    path = Path(target)
    if best:
        if version is not None:
            raise UsageError("the best checkpoint has no versions: leave out --best or --version")
        folder = RunFolder.open(find_run(target, runs_dir))
        if not (folder.checkpoints / "best").is_dir():
            raise UsageError(
                f"run {folder.path} has no best checkpoint yet: it is written after 20 episodes, or with "
                "run.eval_every_steps"
            )
        return WeightSource(folder=folder, checkpoint=folder.checkpoints / "best")
    named = _VERSION_FILE.fullmatch(path.name)
    if named and path.is_file():
        return WeightSource(folder=RunFolder.open(path.parent.parent), version=int(named[1]))
    if path.name == "weights" and path.is_dir():
        return WeightSource(folder=RunFolder.open(path.parent), version=version)
    checkpoint = path.parent if path.is_file() else path
    if checkpoint.parent.name == "checkpoints" and checkpoint.exists():
        if version is not None:
            raise UsageError("a checkpoint has no versions: leave out --version, or name the run")
        return WeightSource(folder=RunFolder.open(checkpoint.parent.parent), checkpoint=checkpoint)
    if path.is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint: name a run, RUN/checkpoints/best or RUN/weights/v00000009.json"
        )
    return WeightSource(folder=RunFolder.open(find_run(target, runs_dir)), version=version)


def acting_weights(
    target: str | Path, *, version: int | None = None, best: bool = False, runs_dir: Path = RUNS_DIR
) -> WeightSource:
    """The weights with which a name acts: if it is a run, those that are deployed in it. Otherwise as `find_weights`."""
    source = find_weights(target, version=version, best=best, runs_dir=runs_dir)
    is_explicit = source.checkpoint is not None or source.version is not None
    if is_explicit or Path(target).resolve() == source.folder.weights.resolve():
        return source
    deployed = Deployment.load(source.folder).deployed
    if deployed.version is not None or Path(deployed.weights).resolve() == source.folder.path.resolve():
        return source  # the run's own: those that its gate has pinned, or the newest
    try:
        return replace(find_weights(deployed.weights), deployed_in=source.folder)
    except DovetailError as error:
        raise UsageError(
            f"{deployed.weights} is deployed in {source.folder.path} and cannot be read: {error}. Roll it back (dovetail "
            f"deploy {source.folder.path} --roll-back), or name {source.folder.weights}"
        ) from error
