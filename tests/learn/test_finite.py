"""A non-finite loss changes no weights and is counted; too many stop the run."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.errors import FailureError
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.finite import BadUpdates, SkippedUpdate, require_finite
from dovetail.learn.learner import Learner
from support.small_algorithms import same_arrays


def clone(policy):
    return Imitation(ImitationConfig(batch_size=8), policy=policy)


def rlpd(policy):
    return RLPD(RLPDConfig(batch_size=8, hidden=(16, 16), actor_every=1, bc_weight=1.0), policy=policy)


def state_of(algorithm):
    return {k: v.copy() for k, v in algorithm.state_dict().items() if k != "generator"}  # chance was drawn


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (clone, "action"),
        (rlpd, "reward"),
        (rlpd, "observation/joint_pos"),
        (rlpd, "next/joint_pos"),
        (rlpd, "action"),
    ],
)
def test_nan_batch_changes_nothing_and_learning_continues(make, name, policy, batch):
    algorithm = make(policy)
    for _ in range(3):
        algorithm.update(batch)
    before = state_of(algorithm)
    broken = {key: values.clone() for key, values in batch.items()}
    broken[name].view(len(broken[name]), -1)[3, 0] = math.nan  # one number of one row
    with pytest.raises(SkippedUpdate, match="loss is nan"):
        algorithm.update(broken)
    assert same_arrays(state_of(algorithm), before)
    metrics = algorithm.update(batch)
    assert all(math.isfinite(v) for v in metrics.values())
    assert not same_arrays(state_of(algorithm), before)


def test_failed_actor_step_keeps_the_critic_step(policy, batch):
    algorithm = rlpd(policy)
    algorithm.update(batch)
    before = state_of(algorithm)
    algorithm._policy.imitation_loss = lambda *_, **__: (
        torch.tensor(math.inf, requires_grad=True)
        * sum(p.sum() for p in algorithm._optimizers.parameters["actor"])
    )
    with pytest.raises(SkippedUpdate, match="actor's loss"):
        algorithm.update(batch)
    after = state_of(algorithm)
    moved = {k.split("/")[0] for k in before if not np.array_equal(before[k], after[k])}
    assert moved == {"critic", "target", "optimizer", "num_updates"}
    assert all(np.isfinite(v).all() for v in after.values())
    assert not any("optimizer/actor" in k for k in before if not np.array_equal(before[k], after[k]))


def test_infinite_gradient_of_a_finite_loss_is_skipped():
    with pytest.raises(SkippedUpdate, match="norm of its gradient inf"):
        require_finite("critic", torch.tensor(1.0), torch.tensor(math.inf))


def learner_of(policy, replay, robot, **settings):
    return Learner(algorithm=rlpd(policy), replay=replay, robot=robot, rng=np.random.default_rng(0), **settings)


def test_skipped_updates_are_counted_over_the_whole_run(policy, replay, robot):
    learner = learner_of(policy, replay, robot, max_bad_updates=3)
    good = replay._batch["reward"].clone()
    assert learner.step(env_steps=2)["skipped_updates"] == 0.0
    replay._batch["reward"][:] = math.nan
    assert learner.step(env_steps=3) == {"skipped_updates": 1.0}
    replay._batch["reward"][:] = good
    metrics = learner.step(env_steps=5)
    assert metrics["skipped_updates"] == 1.0
    assert math.isfinite(metrics["critic_loss"])
    assert learner.num_online_updates == 5  # paid for, skipped or not
    again = learner_of(policy, replay, robot, max_bad_updates=3)
    again.load_state_dict(learner.state_dict())
    assert again.num_skipped_updates == 1
    replay._batch["reward"][:] = math.nan
    with pytest.raises(
        FailureError, match=r"learning failed at update 6: critic's loss is nan.*max_bad_updates is 3"
    ):
        again.step(env_steps=20)
    assert not again.healthy  # the last good checkpoint must not be replaced


def test_old_checkpoint_without_counter_has_no_skipped_updates(policy, replay, robot):
    learner = learner_of(policy, replay, robot)
    state = learner.state_dict()
    state["learner/counters"] = state["learner/counters"][:2]
    learner.load_state_dict(state)
    assert learner.num_skipped_updates == 0


def test_too_many_skipped_updates_raise_failure():
    bad = BadUpdates(2)
    bad.add(SkippedUpdate("x"), number=0)
    with pytest.raises(FailureError, match="2 updates were skipped"):
        bad.add(SkippedUpdate("x"), number=1)
