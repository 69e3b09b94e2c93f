"""The moving average of the weights, in algorithms with one loss and one optimizer."""

import numpy as np
import pytest
import torch

from dovetail.learn.algorithms.hg_dagger import HGDAgger
from dovetail.learn.algorithms.hi_ors import HiORS
from dovetail.policies.components import ComponentConfig
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch
from support.joint_arm import ARM, make_flow

BOTH = pytest.mark.parametrize("kind", [HGDAgger, HiORS])


def make(kind, average):
    return kind(kind.Config(batch_size=8, lr=1e-2, average=average), policy=make_flow(), seed=1)


def actor(weights):
    return np.concatenate([values.ravel() for _, values in sorted(weights["actor"].items())])


def update(algorithm, seed):
    batch = random_batch(algorithm.sample_request, ARM, np.random.default_rng(seed))
    algorithm.update({name: torch.from_numpy(values) for name, values in batch.items()})
    return actor(algorithm._policy.weights())


@BOTH
def test_policy_weights_are_a_moving_average(kind):
    algorithm = make(kind, 0.75)
    start = actor(algorithm.policy_weights())
    one = update(algorithm, 1)
    two = update(algorithm, 2)
    assert np.abs(one - start).max() > 5e-3  # it did learn
    # 3/4 (3/4 start + 1/4 one) + 1/4 two
    np.testing.assert_allclose(
        actor(algorithm.policy_weights()), 9 / 16 * start + 3 / 16 * one + 4 / 16 * two, atol=1e-6
    )


@BOTH
def test_policy_weights_without_average_are_the_latest(kind):
    algorithm = make(kind, 0.0)
    latest = update(algorithm, 1)
    np.testing.assert_array_equal(actor(algorithm.policy_weights()), latest)


@BOTH
def test_average_does_not_change_learning_and_is_resumed(kind):
    plain, averaged, other = make(kind, 0.0), make(kind, 0.9), make(kind, 0.9)
    np.testing.assert_array_equal(update(plain, 1), update(averaged, 1))
    other.load_state_dict(averaged.state_dict())
    update(averaged, 2)
    update(other, 2)
    np.testing.assert_array_equal(actor(averaged.policy_weights()), actor(other.policy_weights()))


@BOTH
def test_passes_check_algorithm(kind):
    check_algorithm(lambda: make(kind, 0.9), robot=ARM)


@BOTH
def test_frozen_component_is_not_averaged(kind):
    policy = make_flow(prompt_features=4, components={"encoder": ComponentConfig(frozen=True)})
    policy.load_components(lambda *_: pytest.fail("there is nothing to read"))
    algorithm = kind(kind.Config(batch_size=8, lr=1e-2, average=0.5), policy=policy, seed=1)
    before = algorithm.policy_weights()
    latest = update(algorithm, 1)
    after = algorithm.policy_weights()
    np.testing.assert_allclose(actor(after), (actor(before) + latest) / 2, atol=1e-6)
    assert all(np.array_equal(values, after["encoder"][name]) for name, values in before["encoder"].items())
    assert not any(key.startswith("averaged/encoder") for key in algorithm.state_dict())
