"""Conformance suite for policies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail.core.abilities import StagesWeights
from dovetail.core.contracts import Policy
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.testing._rig import copied, expect, expect_array, expect_same, random_array

__all__ = ["check_policy", "random_inputs"]

_STILL = ActContext(deterministic=True)


def check_policy(
    make_policy: Callable[[], Policy], *, snapshot: WeightSnapshot | None = None, seed: int = 0
) -> None:
    """Compute actions one by one and in batches, deterministic and sampled, and check that they agree.

    After loading a `snapshot`, the next chunk must have its version.
    """
    policy = make_policy()
    expect(
        isinstance(policy, Policy),
        f"{type(policy).__name__} does not implement all of Policy: spec, act, warmup, load, reset",
    )
    spec = policy.spec
    expect(spec.horizon >= 1, f"spec.horizon should be at least 1, got {spec.horizon}")
    for key, num in spec.history.items():
        expect(key in spec.observation, f"spec.history names '{key}', which is not an observation of the policy")
        expect(num >= 1, f"spec.history['{key}'] should be at least 1, got {num}")
    policy.warmup()
    policy.reset()
    rng = np.random.default_rng(seed)
    _check_chunks(policy, rng)
    _check_batches(policy, rng)
    _check_randomness(policy, rng)
    _check_masks(policy, rng)
    if snapshot is not None:
        policy.load(snapshot)
        inputs = random_inputs(spec, rng, batch=1)
        loaded = policy.act(inputs, _STILL)
        expect(
            loaded.policy_version == snapshot.version,
            f"after load() of version {snapshot.version}, chunks have version {loaded.policy_version}",
        )
        other = make_policy()
        if isinstance(other, StagesWeights):
            _check_staging(other, snapshot, inputs, loaded)


def _check_staging(
    policy: StagesWeights, snapshot: WeightSnapshot, inputs: dict[str, Array], loaded: ActionChunk
) -> None:
    """Staged weights change nothing until they are put into use, and then act as loaded ones."""
    assert isinstance(policy, Policy)
    before = policy.act(inputs, _STILL)
    use = policy.stage(snapshot)
    expect(
        np.array_equal(policy.act(inputs, _STILL).actions, before.actions),
        "stage() changed the actions: only its result may put the new weights into use",
    )
    use()
    staged = policy.act(inputs, _STILL)
    expect(
        np.array_equal(staged.actions, loaded.actions) and staged.policy_version == loaded.policy_version,
        "staged weights act in another way than loaded ones: a policy that overrides load() overrides stage() too",
    )


def random_inputs(spec: PolicySpec, rng: np.random.Generator, *, batch: int) -> dict[str, Array]:
    """Random read-only inputs for a policy, with complete history."""
    inputs: dict[str, Array] = {}
    for key, array in spec.observation.items():
        num = spec.history.get(key)
        inputs[key] = random_array(array, rng, batch, *((num,) if num else ()))
        if num:
            inputs[f"{key}/mask"] = np.ones((batch, num), np.bool_)
    if spec.prompted:
        inputs["prompt"] = np.stack([encode_prompt(f"do thing {rng.integers(100)}") for _ in range(batch)])
    for value in inputs.values():
        value.setflags(write=False)
    return inputs


def _check_chunks(policy: Policy, rng: np.random.Generator) -> None:
    inputs = random_inputs(policy.spec, rng, batch=1)
    for context in (_STILL, ActContext(seed=1), ActContext()):
        chunk = _act(policy, inputs, context)
        kept = chunk.actions.copy()
        _act(policy, random_inputs(policy.spec, rng, batch=1), context)
        expect(
            np.array_equal(kept, chunk.actions),
            "a chunk changed when the next one was computed: copy it",
        )


def _act(policy: Policy, inputs: dict[str, Array], context: ActContext) -> ActionChunk:
    before = copied(inputs)
    chunk = policy.act(inputs, context)
    expect_same(before, inputs, "act() changed the observations")
    expect(isinstance(chunk, ActionChunk), f"act() should return an ActionChunk, got {type(chunk).__name__}")
    batch = len(next(iter(inputs.values())))
    action = policy.spec.action
    rows = ArraySpec(shape=(batch, policy.spec.horizon, *action.shape))
    expect_array(chunk.actions, rows, what="chunk.actions [B, H, A]")
    expect_array(chunk.actions[0, 0], action, what="an action of the chunk", within=True)
    expect(
        isinstance(chunk.policy_version, int),
        f"policy_version should be an int, got {chunk.policy_version!r}",
    )
    for name, value in chunk.extras.items():
        expect(len(value) == batch, f"extra '{name}' has {len(value)} rows for a batch of {batch}")
    return chunk


def _check_batches(policy: Policy, rng: np.random.Generator) -> None:
    inputs = random_inputs(policy.spec, rng, batch=3)
    together = _act(policy, inputs, _STILL).actions
    for row in range(3):
        policy.reset()
        alone = _act(policy, {key: value[row : row + 1] for key, value in inputs.items()}, _STILL).actions[0]
        near = np.allclose(together[row], alone, rtol=1e-3, atol=1e-4)
        expect(near, f"row {row} of a batch gets another action than alone: rows must be independent")


def _check_randomness(policy: Policy, rng: np.random.Generator) -> None:
    inputs = random_inputs(policy.spec, rng, batch=2)
    for context, what in ((_STILL, "deterministic=True"), (ActContext(seed=7), "the same seed")):
        answers = []
        for _ in range(2):
            policy.reset()
            answers.append(_act(policy, inputs, context).actions)
            _act(policy, inputs, ActContext())  # another draw in between
        expect(
            np.array_equal(answers[0], answers[1]),
            f"with {what}, the same observations got different actions",
        )


def _check_masks(policy: Policy, rng: np.random.Generator) -> None:
    """Masked values must not change the action."""
    if not policy.spec.history:
        return
    inputs = {key: value.copy() for key, value in random_inputs(policy.spec, rng, batch=2).items()}
    for key, num in policy.spec.history.items():
        inputs[f"{key}/mask"][:, : num // 2] = False
    before = _act(policy, inputs, _STILL).actions
    for key, num in policy.spec.history.items():
        unseen = random_array(policy.spec.observation[key], rng, 2, num // 2)
        inputs[key][:, : num // 2] = unseen
        policy.reset()
        after = _act(policy, inputs, _STILL).actions
        expect(np.array_equal(before, after), f"values of '{key}' that the mask excludes change the action")
