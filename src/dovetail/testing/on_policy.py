"""Conformance suite for algorithms that learn from rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dovetail.core.types import Array
from dovetail.testing._rig import copied, expect, expect_finite_numbers, expect_same
from dovetail.testing.algorithms import same_weights, weights_of

__all__ = ["check_on_policy_algorithm"]


def check_on_policy_algorithm(
    make_algorithm: Callable[[], object],
    make_rollout: Callable[[int, int], Mapping[str, Array]],
    num_updates: int = 3,
) -> None:
    """Update on rollouts, resume from a checkpoint, and check that both give the same weights.

    `make_algorithm` builds a new algorithm with its policy, equal each time. `make_rollout(seed, version)` returns the
    arrays of a RolloutBuffer that weights of this version collected.
    """
    from dovetail.learn.batches import rollout_batch  # here, so that other suites do not load torch
    from dovetail.learn.rollouts import OnPolicyAlgorithm

    def update(algorithm: OnPolicyAlgorithm, version: int) -> None:
        import torch

        rollout = {name: np.array(values) for name, values in make_rollout(version, version).items()}
        before = copied(rollout)
        metrics = algorithm.update(rollout_batch(rollout, device=torch.device("cpu")))
        expect_same(before, rollout, "update() changed the rollout it was given")
        expect_finite_numbers(metrics, what="metric")

    def build() -> OnPolicyAlgorithm:
        algorithm = make_algorithm()
        if not isinstance(algorithm, OnPolicyAlgorithm):
            raise AssertionError(
                f"{type(algorithm).__name__} does not implement all of OnPolicyAlgorithm: rollout_settings and Algorithm"
            )
        return algorithm

    algorithm = build()
    expect(not sum(algorithm.sample_request.rows.values()), "sample_request asks for rows of a replay")
    start = weights_of(algorithm)
    for version in range(num_updates):
        update(algorithm, version)
    middle, state = weights_of(algorithm), algorithm.state_dict()
    expect(not same_weights(start, middle), f"{num_updates} updates did not change the policy's weights")
    saved = copied(state)
    for version in range(num_updates, 2 * num_updates):
        update(algorithm, version)
    expect_same(saved, state, "state_dict() returned arrays that later updates write to: copy them")
    resumed = build()
    resumed.load_state_dict(saved)
    expect(same_weights(weights_of(resumed), middle), "load_state_dict() did not restore the policy's weights")
    for version in range(num_updates, 2 * num_updates):
        update(resumed, version)
    expect(
        same_weights(weights_of(resumed), weights_of(algorithm)),
        "after load_state_dict(), the same rollouts gave other weights: the state must include optimizers, counters and "
        "random generators",
    )
