"""Data-parallel learning: several processes (ranks) each draw a part of every batch, and all make the same update.

    group = RankGroup(run, size=2, robot=spec, replay=folder)
    algorithm = group.lead(algorithm, config)    # an Algorithm whose updates run in all ranks
    ...
    group.close()

This process is rank 0: it collects, publishes and saves. The others, `python -m dovetail.runtime.ranks DESCRIPTOR`, have a
policy, an algorithm and a reader of the same replay, and wait for the number of the next update. The rows that they draw
depend only on that number, so they have no state to save. torch.distributed sums the gradients: gloo on CPUs, nccl on GPUs.
With `runtime=ray` the ranks are Ray actors: see `runtime.ray.roles.ranks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from dovetail.config.load import load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import Shards
from dovetail.core.contracts import Algorithm, Policy
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.streams import stream
from dovetail.core.types import Array, SampleRequest
from dovetail.learn.batches import Batches, rollout_batch
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.memory import keep_freed_memory
from dovetail.learn.rollouts import OnPolicyAlgorithm, RolloutSettings
from dovetail.learn.setup import set_up
from dovetail.policies.device import find_device
from dovetail.processes.channel import ChannelClosed
from dovetail.processes.child import WorkerProcess, run_worker
from dovetail.processes.temp_folder import LockedTempFolder
from dovetail.runs.assembly.build import build_trainable
from dovetail.runs.assembly.policy_rate import ticks_of_step
from dovetail.runs.folder import RunFolder

__all__ = [
    "Group",
    "LeadAlgorithm",
    "RankChannel",
    "RankGroup",
    "check_ranks",
    "follow",
    "lead_ranks",
    "rank_settings",
]

_END_S = 5.0
_TIMEOUT_S = 120.0  # of a collective operation; every update is shorter
_COUNT = "ranks/num_updates"


def check_ranks(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse missing GPUs and batches that cannot be divided. Sets `algorithm` up as rank 0."""
    learner, device = config.learner, find_device(config.device)
    ray_assigns_gpus = config.runtime == "ray" and config.cluster.learner.num_gpus > 0
    needed = 0 if ray_assigns_gpus else (device.index or 0) + learner.ranks
    if device.type == "cuda" and needed > torch.cuda.device_count():
        raise UsageError(
            f"learner.ranks={learner.ranks} needs {learner.ranks} GPUs from {device} on, but this machine has "
            f"{torch.cuda.device_count()}: set fewer ranks, or device=cpu"
        )
    _set_up_rank(algorithm, config, rank=0, size=learner.ranks)


class RankChannel(Protocol):
    """The connection of a rank to rank 0."""

    def receive(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]: ...

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array]) -> None: ...


class Group(Protocol):
    """The other ranks, as rank 0 sees them."""

    size: int

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        """Send to all ranks. Raises FailureError if one has ended."""
        ...

    def failure(self, error: FailureError) -> FailureError:
        """The reason of a failed update: a rank's exit reason, or else `error`."""
        ...


def rank_settings(
    folder: Path, *, size: int, robot: RobotSpec, replay: Path, replayed: RobotSpec | None, rendezvous: Path
) -> dict[str, Any]:
    """The first message to a rank, without its `rank`."""
    return {
        "folder": str(folder),
        "robot": robot.to_json(),
        "replayed": (replayed or robot).to_json(),
        "replay": str(replay),
        "size": size,
        "rendezvous": str(rendezvous),
        "flush_denormal": float(torch.tensor(1e-39) * torch.tensor(1.0)) == 0.0,  # all ranks must round alike
    }


class RankGroup:
    """The other ranks, started by rank 0. They read their config from the run's `folder`. `replayed` describes the rows of
    the replay if they differ from the robot's observations."""

    def __init__(
        self, folder: Path, *, size: int, robot: RobotSpec, replay: Path, replayed: RobotSpec | None = None
    ) -> None:
        self.size = size
        self._temp_folder = LockedTempFolder("dovetail-ranks-")
        self._ranks: list[WorkerProcess] = []
        rendezvous = self._temp_folder.path / "store"
        self._settings = rank_settings(
            folder, size=size, robot=robot, replay=replay, replayed=replayed, rendezvous=rendezvous
        )
        for rank in range(1, size):
            process = WorkerProcess(f"learning rank {rank}", "dovetail.runtime.ranks")
            self._ranks.append(process)
            process.channel.send({**self._settings, "rank": rank})

    def lead(self, algorithm: Algorithm, config: RunConfig) -> LeadAlgorithm:
        """Wait until all ranks are ready, then connect to them."""
        for process in self._ranks:
            try:
                message, _ = process.channel.receive()
            except ChannelClosed as error:
                raise FailureError(process.exit_reason()) from error
            if "error" in message:
                process.error = message["error"]
                raise FailureError(process.exit_reason())
        return lead_ranks(self, algorithm, config, self._settings)

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        try:
            for process in self._ranks:
                process.channel.send(message, arrays or {})
        except ChannelClosed as error:
            raise FailureError(self._exit_reason() or "a learning rank has ended") from error

    def failure(self, error: FailureError) -> FailureError:
        return FailureError(self._exit_reason() or str(error))

    def _exit_reason(self) -> str | None:
        """Exit reason of the first rank that has ended; None while all are alive."""
        for process in self._ranks:
            if process.wait(1.0):
                with contextlib.suppress(ChannelClosed):
                    if process.channel.has_data():
                        process.error = process.channel.receive()[0]["error"]
                return process.exit_reason()
        return None

    def close(self) -> None:
        for process in self._ranks:
            process.channel.shutdown()
        for process in self._ranks:
            process.close(timeout_s=_END_S)
            process.channel.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._temp_folder.close()


def lead_ranks(
    group: Group, algorithm: Algorithm, config: RunConfig, settings: Mapping[str, Any]
) -> LeadAlgorithm:
    """Connect to ranks that are ready, and send them the state of `algorithm`."""
    _join(_device(config, settings, rank=0), settings["rendezvous"], rank=0, size=group.size)
    _set_up_rank(algorithm, config, rank=0, size=group.size)
    group.send({"load": True}, algorithm.state_dict())
    _shard(algorithm, config)
    return _lead_class(algorithm)(algorithm, group, sharded=config.learner.shard)


def _lead_class(algorithm: Algorithm) -> type[LeadAlgorithm]:
    return LeadOnPolicyAlgorithm if isinstance(algorithm, OnPolicyAlgorithm) else LeadAlgorithm


class LeadAlgorithm:
    """See the Algorithm contract. An update runs in all ranks."""

    def __init__(self, algorithm: Algorithm, group: Group, *, sharded: bool) -> None:
        self._algorithm, self._group, self._sharded = algorithm, group, sharded
        self._parallel = DataParallel(rank=0, size=group.size)
        self._num_updates = 0

    @property
    def sample_request(self) -> SampleRequest:
        return _rank_request(self._algorithm.sample_request, self._parallel)

    def update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        self._group.send({"update": self._num_updates}, self._sent_rows(batch))
        self._num_updates += 1
        try:
            return self._algorithm.update(batch)
        except FailureError as error:
            raise self._group.failure(error) from error

    def _sent_rows(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """Each rank draws its own rows."""
        return {}

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        self._gather("weights")
        return self._algorithm.policy_weights()

    def _gather(self, kind: str) -> None:
        if self._sharded:
            self._group.send({"gather": kind})

    def state_dict(self) -> Mapping[str, Array]:
        self._gather("state")
        return {**self._algorithm.state_dict(), _COUNT: np.array(self._num_updates, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._group.send({"load": True}, state)
        self._algorithm.load_state_dict(state)
        self._num_updates = int(state.get(_COUNT, state["num_updates"]))


class LeadOnPolicyAlgorithm(LeadAlgorithm):
    """See the OnPolicyAlgorithm contract. All ranks get the rollout; each computes its share of every minibatch."""

    @property
    def rollout_settings(self) -> RolloutSettings:
        assert isinstance(self._algorithm, OnPolicyAlgorithm)
        return self._algorithm.rollout_settings

    def _sent_rows(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        return {name: values.cpu().numpy() for name, values in batch.items()}


def _rank_request(request: SampleRequest, parallel: DataParallel) -> SampleRequest:
    rows = parallel.rows_per_view(request)
    return dataclasses.replace(request, rows={view: rows[view] for view in request.rows})


def _join(device: torch.device, rendezvous: str, *, rank: int, size: int) -> None:
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )


def _device(config: RunConfig, settings: Mapping[str, Any], *, rank: int) -> torch.device:
    """GPU number `rank`, unless each rank sees only its own GPU."""
    device = find_device(config.device)
    if device.type == "cpu" or settings.get("sees_its_own"):
        return device
    return torch.device("cuda", (device.index or 0) + rank)


def _set_up_rank(algorithm: Algorithm, config: RunConfig, *, rank: int, size: int) -> None:
    learner, name = config.learner, config.algorithm.type
    set_up(algorithm, name=name, accumulate=learner.accumulate, rank=rank, size=size, shard=learner.shard)


def _shard(algorithm: Algorithm, config: RunConfig) -> None:
    """A collective operation: all ranks must call it."""
    if config.learner.shard and isinstance(algorithm, Shards):
        algorithm.shard()


def follow(channel: RankChannel) -> None:
    """The work of a rank. Ends with ChannelClosed."""
    settings, _ = channel.receive()
    torch.set_num_threads(1)
    torch.set_flush_denormal(settings["flush_denormal"])
    keep_freed_memory()
    rank, size = settings["rank"], settings["size"]
    config = load_saved(Path(settings["folder"]), quiet=True, trusted=True).config
    robot = RobotSpec.from_json(settings["robot"])
    device = _device(config, settings, rank=rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    components = RunFolder(Path(settings["folder"]), config).components  # the initial components of the policy
    policy = build_trainable(config, robot, device=device, components=components)
    algorithm: Algorithm = config.algorithm.build(policy=policy, seed=config.run.seed)
    learner = config.learner
    set_up(algorithm, name=config.algorithm.type, precision=learner.precision, optimizers=learner.optimizers)
    _set_up_rank(algorithm, config, rank=rank, size=size)
    batch_of = _own_rows(settings, config, algorithm, policy, device=device)
    channel.send({"ready": True}, {})
    _join(device, settings["rendezvous"], rank=rank, size=size)
    algorithm.load_state_dict(channel.receive()[1])
    _shard(algorithm, config)
    gather = {"state": algorithm.state_dict, "weights": algorithm.policy_weights}
    while True:
        message, arrays = channel.receive()
        if "load" in message:
            algorithm.load_state_dict(arrays)
            continue
        if "gather" in message:  # each rank contributes its shard
            gather[message["gather"]]()
            continue
        # all ranks skip it, because they see the same gradients; rank 0 counts it
        with contextlib.suppress(SkippedUpdate):
            algorithm.update(batch_of(message["update"], arrays))


def _own_rows(
    settings: Mapping[str, Any], config: RunConfig, algorithm: Algorithm, policy: Policy, *, device: torch.device
) -> Callable[[int, Mapping[str, Array]], Mapping[str, torch.Tensor]]:
    """The batch of an update, from its number and the arrays that rank 0 sent: a rollout, or rows of the replay."""
    if isinstance(algorithm, OnPolicyAlgorithm):
        return lambda number, arrays: rollout_batch(arrays, device=device)
    rank, robot = settings["rank"], RobotSpec.from_json(settings["robot"])
    parallel = DataParallel(rank=rank, size=settings["size"])
    batches = Batches(
        request=_rank_request(algorithm.sample_request, parallel),
        robot=RobotSpec.from_json(settings["replayed"]),
        replay=config.replay.build(folder=Path(settings["replay"]), keys=policy.spec.learned_keys),
        rng=stream(0, "none"),
        device=device,
        num_ahead=0,
        ticks_per_step=ticks_of_step(config, robot),
    )

    def draw(number: int, arrays: Mapping[str, Array]) -> Mapping[str, torch.Tensor]:
        batches.set_request(_rank_request(algorithm.sample_request, parallel))
        batches.reseed(stream(config.run.seed, f"rank {rank}", number))
        with contextlib.closing(batches.take(1)) as drawn:
            batch: Mapping[str, torch.Tensor] = next(drawn)
        return batch

    return draw


if __name__ == "__main__":
    run_worker(follow)
