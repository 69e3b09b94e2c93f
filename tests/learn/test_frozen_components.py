"""A frozen component gets no gradient, no optimizer state, no average and no weight decay."""

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac_flow import SACFlow, SACFlowConfig
from dovetail.policies.flows.flow_actor import FlowActor, FlowActorConfig
from dovetail.testing.algorithms import check_algorithm, random_batch

ALGORITHMS = {
    "imitation": (Imitation, ImitationConfig(batch_size=8, weight_decay=0.1)),
    "hg_dagger": (HGDAgger, HGDAggerConfig(batch_size=8, weight_decay=0.1)),
    "rlpd": (RLPD, RLPDConfig(batch_size=8, hidden=(8,), actor_every=1, bc_weight=0.1)),
    "sac_flow": (SACFlow, SACFlowConfig(batch_size=8, hidden=(8,), actor_every=1)),
}
TRAINS_SIGMA = ("rlpd", "sac_flow")  # cloning matches velocities, and has no opinion on noise


def make(name, robot, **frozen):
    algorithm, config = ALGORITHMS[name]
    parts = {part: {"frozen": is_frozen} for part, is_frozen in frozen.items()}
    policy = FlowActor(FlowActorConfig(hidden=8, num_layers=1, components=parts), robot=robot, seed=0)
    policy.load_components(lambda *_: pytest.fail("there is nothing to read"))
    return algorithm(config, policy=policy, seed=0)


def changed(before, after):
    return {
        part for part in before if any(not np.array_equal(before[part][k], after[part][k]) for k in before[part])
    }


@pytest.mark.parametrize(
    ("name", "frozen"),
    [*((n, "velocity") for n in TRAINS_SIGMA), *((n, part) for n in ALGORITHMS for part in ("sigma", None))],
)
def test_frozen_component_stays_and_others_are_trained(name, frozen, robot):
    algorithm = make(name, robot, **({frozen: True} if frozen else {}))
    before = algorithm.policy_weights()
    for n in range(4):
        batch = random_batch(algorithm.sample_request, robot, np.random.default_rng(n))
        algorithm.update(_tensors(batch))
    trainable = {"velocity", "sigma"} if name in TRAINS_SIGMA else {"velocity"}
    assert changed(before, algorithm.policy_weights()) == trainable - {frozen}
    num_parts = {"velocity": 4 + 2, "sigma": 4 + 2}  # weights, biases and a LayerNorm each
    slots = {key.split("/")[2] for key in algorithm.state_dict() if key.startswith(f"optimizer/{_actor(name)}/")}
    assert len(slots) == sum(num_parts[part] for part in trainable - {frozen})
    assert frozen is None or not any(key.startswith(f"averaged/{frozen}") for key in algorithm.state_dict())


@pytest.mark.parametrize("name", TRAINS_SIGMA)
def test_frozen_component_passes_check_algorithm(name, robot):
    check_algorithm(lambda: make(name, robot, velocity=True), robot=robot)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_components_frozen_raises_usage_error(name, robot):
    with pytest.raises(UsageError, match=r"nothing to train: policy\.components freezes velocity, sigma"):
        make(name, robot, velocity=True, sigma=True)


def _actor(name):
    return "actor" if name in TRAINS_SIGMA else name


def _tensors(batch):
    import torch

    return {key: torch.from_numpy(value) for key, value in batch.items()}
