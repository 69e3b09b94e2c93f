"""One rank that trains a small VLA: `python -m support.vla_rank SETTINGS.json RANK SIZE`. Rank 0 writes weights to `out`.

All ranks get the same batches and take their rows of them, as the ranks of a run do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from dovetail.config.schema import RunConfig
from dovetail.core.prompts import encode_prompt
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.setup import set_up
from support.small_vlas import SMALL_VLAS

ROWS, HORIZON, NUM_ACTIONS, NUM_UPDATES = 6, 5, 6, 3


def arm():
    config = RunConfig.model_validate(
        {
            "task": {"type": "push_cube"},
            "robot": {"type": "sim", "images": ["front"], "image_size": [32, 32]},
            "policy": {"type": "gaussian_mlp"},
            "algorithm": {"type": "rlpd"},
        }
    )
    return config.robot.build(task=config.task.build()).spec


def make_batch(*, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    arrays = {
        "observation/joint_pos": rng.normal(size=(ROWS, 7)).astype(np.float32),
        "observation/gripper": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "observation/front": rng.integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt("push the cube")] * ROWS),
        "action": rng.normal(size=(ROWS, HORIZON, NUM_ACTIONS)).astype(np.float32) * 0.01,
        "achieved": rng.normal(size=(ROWS, HORIZON, NUM_ACTIONS)).astype(np.float32) * 0.01,
        "action/mask": np.ones((ROWS, HORIZON), np.bool_),
        "human": np.ones((ROWS, HORIZON), np.bool_),
        "discount": np.ones(ROWS, np.float32),
    }
    arrays["action/mask"][0, 2:] = False
    arrays["action"][0, 2:] = np.nan
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def train(family: str, folder: Path, settings: dict[str, object], *, rank: int = 0, size: int = 1) -> Imitation:
    """A learner after some updates; sharded if there are several ranks."""
    policy = SMALL_VLAS[family].make(folder, robot=arm(), state=("joint_pos", "gripper"), **settings)
    learner = Imitation(ImitationConfig(batch_size=ROWS), policy=policy, seed=0)
    set_up(learner, name="imitation", rank=rank, size=size, shard=size > 1)
    if size > 1:
        learner.shard()
    for number in range(NUM_UPDATES):
        learner.update({key: value[rank::size] for key, value in make_batch(seed=number).items()})
    return learner


def main() -> None:
    settings, rank, size = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=rank, world_size=size)
    learner = train(settings["family"], Path(settings["folder"]), settings["policy"], rank=rank, size=size)
    weights = learner.policy_weights()  # gathers: all ranks call it
    learner.load_state_dict(learner.state_dict())
    again = learner.policy_weights()
    if rank == 0:
        local = sum(p.to_local().numel() for p in learner._parameters)
        flat = {f"{name}/{key}": value for name, arrays in weights.items() for key, value in arrays.items()}
        assert all(
            np.array_equal(again[name][key], value) for name in weights for key, value in weights[name].items()
        )
        np.savez(settings["out"], __local__=local, **flat)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
