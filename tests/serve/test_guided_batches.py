"""Real-time chunking of several robots: no size of a batch is computed for the first time while robots wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.types import ActContext
from dovetail.serve import batching
from dovetail.serve.batching import Batcher
from support.policy_servers import ScriptedPolicy

PREFIX = np.zeros((1, 3, 2), np.float32)
GUIDED = ActContext(deterministic=True, prefix=PREFIX, delay=1, horizon=2)


def sizes_of(policy):
    """(rows, guided) of each call, as a sampler compiles and captures them."""
    return [(len(observations["force"]), context.prefix is not None) for observations, context in policy.calls]


def requests(batcher, num, context):
    row = {"force": np.zeros((1, 2), np.float32), "prompt": np.zeros((1, 1), np.uint8)}
    return [batcher.submit(client, row, context) for client in range(num)]


def computed(policy, batcher, num, context):
    """Sizes of the batches of requests that arrive together."""
    policy.calls.clear()
    results = requests(batcher, num, context)
    batcher.start()
    for result in results:
        assert result.result(10).chunk.actions.shape == (1, 3, 2)
    batcher.close()
    return sizes_of(policy)


@pytest.mark.parametrize("num", [2, 3, 8])
def test_every_size_of_guided_robots_was_warmed_up(num):
    policy = ScriptedPolicy()
    batcher = Batcher(policy, max_rows=8)
    batcher.warmup()
    warm = set(sizes_of(policy))
    assert warm == {(rows, guided) for rows in (2, 4, 8) for guided in (False, True)}
    prefixes = [context.prefix for _, context in policy.calls if context.prefix is not None]
    assert [prefix.shape for prefix in prefixes] == [(2, 3, 2), (4, 3, 2), (8, 3, 2)]
    assert set(computed(policy, batcher, num, GUIDED)) <= {*warm, (1, True)}


@pytest.mark.parametrize(("limit_s", "largest"), [(0.0, 1), (1.0, 2), (1.5, 4)])
def test_guided_sizes_that_take_too_long_are_neither_warmed_up_nor_joined(monkeypatch, limit_s, largest):
    """Each guided size takes 1 s."""
    now = 0.0

    def answer(observations, context):
        nonlocal now
        now += 1.0 if context.prefix is not None else 100.0
        return np.zeros((len(observations["force"]), 3, 2), np.float32)

    policy = ScriptedPolicy(answer)
    with monkeypatch.context() as patch:
        patch.setattr(batching, "_GUIDED_WARMUP_S", limit_s)
        patch.setattr(batching.time, "monotonic", lambda: now)
        batcher = Batcher(policy, max_rows=8)
        batcher.warmup()
    guided = {rows for rows, is_guided in sizes_of(policy) if is_guided}
    assert guided == {rows for rows in (2, 4, 8) if rows <= largest}
    assert {rows for rows, is_guided in sizes_of(policy) if not is_guided} == {2, 4, 8}
    assert max(computed(policy, batcher, 8, GUIDED)) == (largest, True)


def test_policy_that_cannot_be_guided_is_not_warmed_up_for_it():
    policy = ScriptedPolicy()
    policy.spec = replace(policy.spec, guidable=False)
    Batcher(policy, max_rows=8).warmup()
    assert sizes_of(policy) == [(2, False), (4, False), (8, False)]


def test_requests_without_a_prefix_are_joined_as_before():
    policy = ScriptedPolicy()
    batcher = Batcher(policy, max_rows=4)
    batcher.warmup()
    assert computed(policy, batcher, 4, ActContext(deterministic=True)) == [(4, False)]
