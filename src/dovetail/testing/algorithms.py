"""Conformance suite for algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dovetail.core.contracts import Algorithm
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, SampleRequest
from dovetail.testing._rig import copied, expect, expect_finite_numbers, expect_same, random_array

__all__ = ["check_algorithm", "random_batch", "same_weights", "weights_of"]

_Weights = Mapping[str, Mapping[str, Array]]


def check_algorithm(
    make_algorithm: Callable[[], Algorithm], *, robot: RobotSpec, num_updates: int = 8, seed: int = 0
) -> None:
    """Update on random batches, resume from a checkpoint, and check that both give the same weights.

    `make_algorithm` builds a new algorithm with its policy, equal each time. Batches come from `robot`.
    """
    algorithm = make_algorithm()
    expect(
        isinstance(algorithm, Algorithm),
        f"{type(algorithm).__name__} does not implement all of Algorithm: wants, update, policy_weights, state_dict, "
        "load_state_dict",
    )
    wants = algorithm.sample_request
    expect(isinstance(wants, SampleRequest), f"wants should be a SampleRequest, got {type(wants).__name__}")
    expect(sum(wants.rows.values()) > 0, "wants asks for no rows")
    for key in wants.observation_keys:
        expect(key in robot.observation, f"wants observation '{key}', which robot '{robot.name}' does not give")
    batches = [random_batch(wants, robot, np.random.default_rng((seed, n))) for n in range(2 * num_updates)]
    first, rest = batches[:num_updates], batches[num_updates:]

    before = weights_of(algorithm)
    _update(algorithm, first)
    kept = algorithm.policy_weights()
    middle = weights_of(algorithm)
    expect(not same_weights(before, middle), f"{num_updates} updates did not change the policy's weights")
    state = algorithm.state_dict()
    saved = copied(state)
    _update(algorithm, rest)
    after = weights_of(algorithm)
    expect(same_weights(kept, middle), "policy_weights() returned arrays that later updates write to: copy them")
    expect_same(saved, state, "state_dict() returned arrays that later updates write to: copy them")

    resumed = make_algorithm()
    resumed.load_state_dict(saved)
    expect(same_weights(weights_of(resumed), middle), "load_state_dict() did not restore the policy's weights")
    _update(resumed, rest)
    expect(
        same_weights(weights_of(resumed), after),
        "after load_state_dict(), the same batches gave other weights: the state must include optimizers, counters "
        "and random generators",
    )
    fresh = make_algorithm()
    _update(fresh, first)
    expect(
        same_weights(weights_of(fresh), middle), "two equal algorithms gave different weights on the same batches"
    )


def random_batch(wants: SampleRequest, robot: RobotSpec, rng: np.random.Generator) -> dict[str, Array]:
    """A batch like those of a replay: rows of all views, view by view."""
    from dovetail.learn.batches import batch_arrays  # here, so that other suites do not load torch

    batch = batch_arrays(wants, robot)
    for name, values in batch.items():
        is_action = name in ("action", "achieved")
        if is_action or (name.startswith(("observation/", "next/")) and not name.endswith("/mask")):
            spec = robot.action if is_action else robot.observation[name.partition("/")[2]]
            flat = values.reshape(-1, *spec.shape)
            flat[:] = random_array(spec, rng, len(flat))
        elif name == "prompt" or name.endswith("/prompt"):
            texts = [encode_prompt(f"do thing {number}") for number in rng.integers(0, 100, len(values))]
            values[:] = 0
            values[:, : len(texts[0])] = texts
        else:
            values[:] = rng.integers(0, 2, values.shape)
    return batch


def _update(algorithm: Algorithm, batches: list[dict[str, Array]]) -> None:
    """Reuse one set of arrays for all updates, like the learner."""
    import torch
    from tensordict import TensorDict

    buffers = {key: np.empty_like(value) for key, value in batches[0].items()}
    tensors = {key: torch.from_numpy(value) for key, value in buffers.items()}
    for batch in batches:
        for key, value in batch.items():
            buffers[key][...] = value
        metrics = algorithm.update(TensorDict(tensors, batch_size=[len(batch["reward"])]))
        expect_same(batch, buffers, "update() changed the batch it was given")
        expect_finite_numbers(metrics, what="metric")
        for buffer in buffers.values():  # exposes algorithms that keep a view
            buffer.fill(0)


def weights_of(algorithm: Algorithm) -> _Weights:
    weights = algorithm.policy_weights()
    expect(weights, "policy_weights() is empty")
    for name, component in weights.items():
        for key, value in component.items():
            what = f"weight '{name}/{key}'"
            expect(isinstance(value, np.ndarray), f"{what} should be a numpy array, got {type(value).__name__}")
            expect(np.isfinite(value).all(), f"{what} is not finite")
    return {name: copied(component) for name, component in weights.items()}


def same_weights(ours: _Weights, theirs: _Weights) -> bool:
    return set(ours) == set(theirs) and all(
        set(component) == set(theirs[name])
        and all(np.array_equal(value, theirs[name][key]) for key, value in component.items())
        for name, component in ours.items()
    )
