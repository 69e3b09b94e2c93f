"""One data-parallel process: `python -m support.data_parallel_process MEETING RANK SIZE OUT`."""

import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from dovetail.core.abilities import Shards
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.setup import set_up
from support.small_algorithms import ROBOT, algorithms, batch_for


def learn(rank, size, *, num_updates=3, shard=False):
    """States of all algorithms after some updates on this rank's rows, and one update with NaN on the last rank."""
    states = {}
    for name, algorithm in algorithms(ROBOT).items():
        if shard and not isinstance(algorithm, Shards):
            continue
        set_up(algorithm, name=name, rank=rank, size=size, shard=shard)
        if shard:
            algorithm.shard()
            assert algorithm._parameters[0].to_local().numel() < algorithm._parameters[0].numel()
            algorithm.load_state_dict(algorithm.state_dict())
        batch = batch_for(algorithm)
        mine = {key: values[rank::size] for key, values in batch.items()}
        for _ in range(num_updates):
            algorithm.update(mine)
        if size > 1 and rank == size - 1:
            mine["observation/joint_pos"] = torch.full_like(mine["observation/joint_pos"], torch.nan)
        if size > 1:
            try:
                algorithm.update(mine)
            except SkippedUpdate:
                states[f"{'sharded ' * shard}{name}|skipped"] = np.ones(1)
        mark = f"sharded {name}" if shard else name
        states |= {f"{mark}|{key}": value for key, value in algorithm.state_dict().items()}
    return states


if __name__ == "__main__":
    torch.set_num_threads(1)
    meeting, rank, size, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    states = {**learn(rank, size), **learn(rank, size, shard=True)}
    np.savez(out, **{key.replace("/", "\\"): value for key, value in states.items()})
    dist.destroy_process_group()
