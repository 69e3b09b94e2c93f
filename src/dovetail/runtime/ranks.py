"""Several processes that learn as one: each draws its part of every batch, and all take the same step.

    group = RankGroup(run, size=2, robot=spec, replay=folder)
    algorithm = group.lead(algorithm, config)    # an Algorithm like any other; the rest follow it
    ...
    group.close()

This process is rank 0: it collects, publishes and saves. The others, `python -m dovetail.runtime.ranks DESCRIPTOR`, have a
policy, an algorithm and a reader of the same replay, and do nothing until they are told the number of the next update. Which
rows they draw for it depends on that number alone, so that there is nothing of theirs to save. Gradients are added up over
torch.distributed: gloo on CPUs, nccl on GPUs. With runtime: ray they are actors of the learner's: `runtime.ray.ranks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from dovetail.config.load import load_saved
from dovetail.config.schema import RunConfig
from dovetail.core.contracts import Algorithm
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.streams import stream
from dovetail.core.types import Array, SampleRequest
from dovetail.learn.batches import Batches
from dovetail.learn.device import find_device
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.memory import keep_freed_memory
from dovetail.learn.setup import set_up
from dovetail.learn.data_parallel import DataParallel
from dovetail.processes.array_channel import ArrayChannel, run_child
from dovetail.processes.channel import ChannelClosed
from dovetail.runs.assembly.build import build_trainable
from dovetail.runs.folder import RunFolder

__all__ = ["Group", "LeadAlgorithm", "Link", "RankGroup", "check_ranks", "follow", "lead_ranks", "rank_orders"]

_END_S = 5.0
_PATIENCE_S = 120.0  # for a rank that is silent: longer than any update takes
_COUNT = "ranks/num_updates"


def check_ranks(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse GPUs that are not there, and batches that cannot be divided; changes how `algorithm` computes."""
    learner, device = config.learner, find_device(config.device)
    given_out = (
        config.runtime == "ray" and config.cluster.learner.num_gpus > 0
    )  # by Ray, which has its own word on it
    needed = 0 if given_out else (device.index or 0) + learner.ranks
    if device.type == "cuda" and needed > torch.cuda.device_count():
        raise UsageError(
            f"learner.ranks={learner.ranks} wants a GPU each, and of {torch.cuda.device_count()} the first is {device}: "
            "set fewer, or device=cpu"
        )
    _spread(algorithm, config, rank=0, size=learner.ranks)


class Link(Protocol):
    """A rank's line to rank 0."""

    def receive(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]: ...

    def send(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None: ...


class Group(Protocol):
    """The other ranks, as rank 0 tells them things."""

    size: int

    def tell(self, facts: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        """All of them; who is gone is an error."""
        ...

    def lost(self, error: FailureError) -> FailureError:
        """What to say where an update failed: one of them may have died."""
        ...


def rank_orders(
    folder: Path, *, size: int, robot: RobotSpec, replay: Path, replayed: RobotSpec | None, meeting: Path
) -> dict[str, Any]:
    """What ranks are told first, each with its `rank`."""
    return {
        "folder": str(folder),
        "robot": robot.to_json(),
        "replayed": (replayed or robot).to_json(),
        "replay": str(replay),
        "size": size,
        "meeting": str(meeting),
        "flush_denormal": float(torch.tensor(1e-39) * torch.tensor(1.0)) == 0.0,  # they round as this one does
    }


class RankGroup:
    """The other ranks, as rank 0 has them. `folder` is the run's, which they read their config from; `replayed` is what
    the replay keeps of a robot, where that is not what it gives."""

    def __init__(
        self, folder: Path, *, size: int, robot: RobotSpec, replay: Path, replayed: RobotSpec | None = None
    ) -> None:
        self.size = size
        self._meeting = tempfile.TemporaryDirectory(prefix="dovetail-ranks-")
        self._frames: list[ArrayChannel] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        meeting = Path(self._meeting.name) / "store"
        orders = rank_orders(folder, size=size, robot=robot, replay=replay, replayed=replayed, meeting=meeting)
        for rank in range(1, size):
            ours, theirs = ArrayChannel.pair()
            try:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "dovetail.runtime.ranks", str(theirs.fileno())],
                        pass_fds=(theirs.fileno(),),
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                        process_group=0,  # a terminal's Ctrl-C is for rank 0, who then ends them
                    )
                )
            finally:
                theirs.close()
            self._frames.append(ours)
            ours.send({**orders, "rank": rank}, {})
        self._orders = orders

    def lead(self, algorithm: Algorithm, config: RunConfig) -> LeadAlgorithm:
        """Wait until all are there, and go on as one."""
        self._await()
        return lead_ranks(self, algorithm, config, self._orders)

    def _await(self) -> None:
        """Until each says that it is ready to join: who died on the way there is not waited for."""
        for rank, frames in enumerate(self._frames, start=1):
            try:
                facts, _ = frames.receive()
            except ChannelClosed as error:
                raise FailureError(self.obituary() or f"learning rank {rank} has gone") from error
            if "error" in facts:
                raise FailureError(f"learning rank {rank} has died: {facts['error']}")

    def tell(self, facts: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        try:
            for frames in self._frames:
                frames.send(facts, arrays or {})
        except ChannelClosed as error:
            raise FailureError(self.obituary() or "a learning rank has gone") from error

    def obituary(self) -> str | None:
        """What the first one that died said, or what it died of; None while all live."""
        for rank, (frames, process) in enumerate(zip(self._frames, self._processes, strict=True), start=1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            code = process.poll()
            if code is None:
                continue
            with contextlib.suppress(ChannelClosed):
                while frames.waits():
                    facts, _ = frames.receive()
                    return f"learning rank {rank} has died: {facts['error']}"
            why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            return f"learning rank {rank} has died: {why}"
        return None

    def lost(self, error: FailureError) -> FailureError:
        return FailureError(self.obituary() or str(error))

    def close(self) -> None:
        for frames in self._frames:
            frames.hang_up()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            if process.poll() is None:
                process.kill()
                process.wait()
        for frames in self._frames:
            frames.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._meeting.cleanup()


def lead_ranks(group: Group, algorithm: Algorithm, config: RunConfig, orders: Mapping[str, Any]) -> LeadAlgorithm:
    """Once all the others are ready to join: go on as one."""
    _join(_device(config, orders, rank=0), orders["meeting"], rank=0, size=group.size)
    _spread(algorithm, config, rank=0, size=group.size)
    group.tell({"load": True}, algorithm.state_dict())
    _shard(algorithm, config)
    return LeadAlgorithm(algorithm, group, sharded=config.learner.shard)


class LeadAlgorithm:
    """See the Algorithm contract: an update of this one is an update of all."""

    def __init__(self, algorithm: Algorithm, group: Group, *, sharded: bool) -> None:
        self._algorithm, self._group, self._sharded = algorithm, group, sharded
        self._share = DataParallel(rank=0, size=group.size)
        self._num_updates = 0

    @property
    def sample_request(self) -> SampleRequest:
        return _shared(self._algorithm.sample_request, self._share)

    def update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        self._group.tell({"update": self._num_updates})
        self._num_updates += 1
        try:
            return self._algorithm.update(batch)
        except FailureError as error:
            raise self._group.lost(error) from error

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        self._gather("weights")
        return self._algorithm.policy_weights()

    def _gather(self, what: str) -> None:
        if self._sharded:
            self._group.tell({"gather": what})

    def state_dict(self) -> Mapping[str, Array]:
        self._gather("state")
        return {**self._algorithm.state_dict(), _COUNT: np.array(self._num_updates, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._group.tell({"load": True}, state)
        self._algorithm.load_state_dict(state)
        self._num_updates = int(state.get(_COUNT, state["num_updates"]))


def _shared(request: SampleRequest, parallel: DataParallel) -> SampleRequest:
    rows = parallel.rows_per_view(request)
    return dataclasses.replace(request, rows={view: rows[view] for view in request.rows})


def _join(device: torch.device, meeting: str, *, rank: int, size: int) -> None:
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_PATIENCE_S),
    )


def _device(config: RunConfig, orders: Mapping[str, Any], *, rank: int) -> torch.device:
    """One each: the next one, unless each sees its own only."""
    device = find_device(config.device)
    if device.type == "cpu" or orders.get("sees_its_own"):
        return device
    return torch.device("cuda", (device.index or 0) + rank)


def _spread(algorithm: Algorithm, config: RunConfig, *, rank: int, size: int) -> None:
    """As one of several; its precision it has already."""
    learner, name = config.learner, config.algorithm.type
    set_up(algorithm, name=name, accumulate=learner.accumulate, rank=rank, size=size, shard=learner.shard)


def _shard(algorithm: Algorithm, config: RunConfig) -> None:
    """All of them come to this together, and alike."""
    if config.learner.shard:
        algorithm.shard()  # type: ignore[attr-defined]


def follow(link: Link) -> None:
    """All that a rank does, until its line is cut: then it raises ChannelClosed."""
    orders, _ = link.receive()
    torch.set_num_threads(1)
    torch.set_flush_denormal(orders["flush_denormal"])
    keep_freed_memory()
    rank, size = orders["rank"], orders["size"]
    config, robot = load_saved(Path(orders["folder"]), quiet=True).config, RobotSpec.from_json(orders["robot"])
    device = _device(config, orders, rank=rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    parts = RunFolder(Path(orders["folder"]), config).parts  # what rank 0's policy started from
    policy = build_trainable(config, robot, device=device, parts=parts)
    algorithm: Algorithm = config.algorithm.build(policy=policy, seed=config.run.seed)
    set_up(algorithm, name=config.algorithm.type, precision=config.learner.precision)
    _spread(algorithm, config, rank=rank, size=size)
    replay = config.replay.build(folder=Path(orders["replay"]), keys=tuple(policy.spec.observation))
    share = DataParallel(rank=rank, size=size)
    request = _shared(algorithm.sample_request, share)
    batches = Batches(
        request=request,
        robot=RobotSpec.from_json(orders["replayed"]),
        replay=replay,
        rng=stream(0, "none"),
        device=device,
        num_ahead=0,
    )
    link.send({"ready": True}, {})
    _join(device, orders["meeting"], rank=rank, size=size)
    algorithm.load_state_dict(link.receive()[1])
    _shard(algorithm, config)
    gather = {"state": algorithm.state_dict, "weights": algorithm.policy_weights}
    while True:
        facts, arrays = link.receive()
        if "load" in facts:
            algorithm.load_state_dict(arrays)
            continue
        if "gather" in facts:  # of what is sharded, everybody gives its part
            gather[facts["gather"]]()
            continue
        batches.ask(_shared(algorithm.sample_request, share))
        batches.reseed(stream(config.run.seed, f"rank {rank}", facts["update"]))
        for batch in batches.take(1):
            with contextlib.suppress(SkippedUpdate):  # by all, for all see the same gradients; rank 0 counts
                algorithm.update(batch)


if __name__ == "__main__":
    os._exit(run_child(follow))  # to tear torch down piece by piece takes a second
