"""A small instance of each replay algorithm, batches for them, and a comparison of states."""

import numpy as np
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.learn.algorithms.dsrl import DSRL, DSRLConfig
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac_flow import SACFlow, SACFlowConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.flow_actor import FlowActor, FlowActorConfig
from dovetail.policies.flows.steered_flow import SteeredFlow, SteeredFlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig

NUM_ENVS, NUM_STEPS = 3, 8  # of `rollout`
ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(3,))},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def flow(robot, kind=Flow, config=FlowConfig):
    return kind(config(horizon=4, hidden=16, num_layers=1), robot=robot)


def algorithms(robot):
    """One small instance of each algorithm that learns from a replay."""
    gaussian = GaussianMLP(GaussianMLPConfig(hidden=(16, 16)), robot=robot)
    single = GaussianMLP(GaussianMLPConfig(hidden=(16, 16)), robot=robot)
    actor = FlowActor(FlowActorConfig(hidden=16), robot=robot)
    soft = {"batch_size": 8, "hidden": (16, 16), "actor_every": 1}
    return {
        "rlpd": RLPD(RLPDConfig(bc_weight=0.5, num_critics=3, **soft), policy=gaussian),
        "sac_flow": SACFlow(SACFlowConfig(**soft), policy=actor),
        "dsrl": DSRL(DSRLConfig(**soft), policy=flow(robot, SteeredFlow, SteeredFlowConfig)),
        "imitation": Imitation(ImitationConfig(batch_size=8), policy=flow(robot)),
        "hg_dagger": HGDAgger(HGDAggerConfig(batch_size=8), policy=flow(robot)),
        "hi_ors_of_singles": HiORS(HiORSConfig(batch_size=8), policy=single),
        "hi_ors": HiORS(HiORSConfig(batch_size=8), policy=flow(robot)),
    }


def batch_for(algorithm, device="cpu"):
    rng = np.random.default_rng(0)
    chunks = algorithm._policy.spec.horizon
    chunk = (chunks,) if chunks > 1 else ()
    arrays = {
        "observation/joint_pos": rng.normal(size=(8, 3)).astype(np.float32),
        "next/joint_pos": rng.normal(size=(8, 3)).astype(np.float32),
        "action": rng.uniform(-1, 1, size=(8, *chunk, 2)).astype(np.float32),
        "achieved": rng.uniform(-1, 1, size=(8, *chunk, 2)).astype(np.float32),
        "action/mask": np.arange(8 * chunks).reshape(8, chunks) % 7 > 0,
        "reward": rng.normal(size=8).astype(np.float32),
        "discount": np.ones(8, np.float32),
        "human": np.broadcast_to((np.arange(8) % 2 == 0).reshape(8, *(1 for _ in chunk)), (8, *chunk)).copy(),
    }
    return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}


def rollout(policy, *, seed=0, version=0, ends=((0, 2),), cuts=((1, 4),)):
    """A random rollout, as a collector with this policy returns it."""
    rng = np.random.default_rng(seed)
    observations = torch.from_numpy(rng.normal(size=(NUM_ENVS, NUM_STEPS + 1, 3)).astype(np.float32))
    with torch.no_grad():
        features = policy.features({"joint_pos": observations[:, :-1].flatten(0, 1)})
        drawn, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(seed))
    terminated = torch.zeros(NUM_ENVS, NUM_STEPS, dtype=torch.bool)
    for n, t in ends:
        terminated[n, t] = True
    return {
        "observation/joint_pos": observations,
        "action": drawn.view(NUM_ENVS, NUM_STEPS, -1),
        "log_prob": log_prob.view(NUM_ENVS, NUM_STEPS),
        "version": torch.full((NUM_ENVS, NUM_STEPS), version),
        "reward": torch.from_numpy(rng.normal(size=(NUM_ENVS, NUM_STEPS)).astype(np.float32)),
        "num_executed": torch.ones(NUM_ENVS, NUM_STEPS, dtype=torch.int64),
        "terminated": terminated,
        "final_at": torch.tensor(sorted(n * NUM_STEPS + t for n, t in cuts), dtype=torch.int64),
        "final/joint_pos": torch.from_numpy(rng.normal(size=(len(cuts), 3)).astype(np.float32)),
    }


def same_arrays(a, b):
    """Whether two mappings have the same keys and identical arrays."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
