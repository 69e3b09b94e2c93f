"""Conformance suite for algorithms that learn from rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActContext, Array, WeightSnapshot
from dovetail.testing._rig import copied, expect, expect_finite_numbers, expect_same
from dovetail.testing.algorithms import same_weights, weights_of

if TYPE_CHECKING:  # other suites do not load torch
    from dovetail.learn.rollouts import OnPolicyAlgorithm, RolloutSettings

__all__ = ["check_on_policy_algorithm", "random_rollout"]


def check_on_policy_algorithm(
    make_algorithm: Callable[[Any], object], make_policy: Callable[[], Any], num_updates: int = 3
) -> None:
    """Update on rollouts, resume from a checkpoint, and check that both give the same weights.

    `make_policy` builds a policy with values and densities (ValuedPolicy), and `make_algorithm` an algorithm for it, equal
    each time. Another policy of the same kind loads each version of the weights and acts in random observations.
    """
    import torch

    from dovetail.learn.batches import rollout_batch
    from dovetail.learn.rollouts import OnPolicyAlgorithm

    def build() -> OnPolicyAlgorithm:
        algorithm = make_algorithm(make_policy())
        if not isinstance(algorithm, OnPolicyAlgorithm):
            raise AssertionError(
                f"{type(algorithm).__name__} does not implement all of OnPolicyAlgorithm: rollout_settings and Algorithm"
            )
        return algorithm

    def update(algorithm: OnPolicyAlgorithm, rollout: dict[str, Array]) -> None:
        given = rollout_batch(copied(rollout), device=torch.device("cpu"))
        metrics = algorithm.update(given)
        after = {name: values.numpy() for name, values in given.items()}
        expect_same(rollout, after, "update() changed the rollout it was given")
        expect_finite_numbers(metrics, what="metric")

    acting = make_policy()

    def collect(algorithm: OnPolicyAlgorithm, version: int) -> dict[str, Array]:
        acting.load(WeightSnapshot(version=version, components=algorithm.policy_weights(), hashes={}))
        return random_rollout(acting, algorithm.rollout_settings, seed=version)

    algorithm = build()
    expect(not sum(algorithm.sample_request.rows.values()), "sample_request asks for rows of a replay")
    start = weights_of(algorithm)
    for version in range(num_updates):
        update(algorithm, collect(algorithm, version))
    middle, state = weights_of(algorithm), algorithm.state_dict()
    expect(not same_weights(start, middle), f"{num_updates} updates did not change the policy's weights")
    saved, rollouts = copied(state), []
    for version in range(num_updates, 2 * num_updates):
        rollouts.append(collect(algorithm, version))
        update(algorithm, rollouts[-1])
    expect_same(saved, state, "state_dict() returned arrays that later updates write to: copy them")
    resumed = build()
    resumed.load_state_dict(saved)
    expect(same_weights(weights_of(resumed), middle), "load_state_dict() did not restore the policy's weights")
    for rollout in rollouts:
        update(resumed, rollout)
    expect(
        same_weights(weights_of(resumed), weights_of(algorithm)),
        "after load_state_dict(), the same rollouts gave other weights: the state must include optimizers, counters and "
        "random generators",
    )


def random_rollout(policy: Any, settings: RolloutSettings, *, seed: int) -> dict[str, Array]:
    """A rollout with the policy's own choices, but random observations and rewards. Episodes end or are truncated."""
    from dovetail.learn.rollouts import RolloutBuffer

    rng, spec = np.random.default_rng(seed), policy.spec
    num_envs, num_steps = settings.num_envs, settings.num_steps
    inputs = _random_inputs(spec, rng, num_envs)
    buffer = RolloutBuffer(
        num_envs=num_envs,
        num_steps=num_steps,
        observation={key: ArraySpec(shape=v.shape[1:], dtype=v.dtype.name) for key, v in inputs.items()},
        num_drawn=policy.num_drawn,
        horizon=spec.horizon,
    )
    for t in range(num_steps):
        chunk = policy.act(inputs, ActContext(seed=int(rng.integers(2**62))))
        missing = {"drawn", "log_prob"} - chunk.extras.keys()
        expect(not missing, f"act() of the policy returned no {', '.join(sorted(missing))} among its extras")
        buffer.add_observations(t, inputs)
        version = chunk.policy_version
        buffer.add_choice(t, drawn=chunk.extras["drawn"], log_prob=chunk.extras["log_prob"], version=version)
        terminated = rng.random(num_envs) < 0.1
        buffer.add_result(
            t,
            slice(0, num_envs),
            reward=rng.normal(size=num_envs).astype(np.float32),
            num_executed=np.full(num_envs, spec.horizon),
            terminated=terminated,
        )
        inputs = _random_inputs(spec, rng, num_envs)
        for n in np.flatnonzero(~terminated & (rng.random(num_envs) < 0.1)):
            buffer.add_truncation(int(n), t, {key: values[n] for key, values in inputs.items()})
    buffer.add_observations(num_steps, inputs)
    return buffer.take_arrays()


def _random_inputs(spec: PolicySpec, rng: np.random.Generator, num_rows: int) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for key, array in spec.observation.items():
        ticks = spec.history.get(key)
        shape = (num_rows, *((ticks,) if ticks else ()), *array.shape)
        if array.is_picture:
            inputs[key] = rng.integers(0, 256, shape).astype(array.dtype)
        else:
            inputs[key] = rng.normal(size=shape).astype(array.dtype)
        if ticks:
            inputs[f"{key}/mask"] = np.ones((num_rows, ticks), np.bool_)
    if spec.prompted:
        inputs["prompt"] = np.stack([encode_prompt("do the task")] * num_rows)
    return inputs
