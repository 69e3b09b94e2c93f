"""PPO of a small VLA: the rows from known times, and one short measurement."""

import pytest

from dovetail.bench.vla import ppo
from dovetail.bench.vla.ppo import Rounds
from dovetail.config.load import load

SYNCHRONOUS = Rounds(collect_s=[2.0, 2.0, 9.0], update_s=[1.0, 1.0, 1.0], staleness=0.0)


@pytest.mark.parametrize(("waited_s", "share", "met"), [(1.0, 100.0, True), (1.5, 80.0, False)])
def test_share_of_the_bound(waited_s, share, met):
    """C = 2 s and T = 1 s: the bound is 1.5. A round of 2 s is 1.5 times faster than 3 s, one of 2.5 s 1.2 times."""
    asynchronous = Rounds(collect_s=[waited_s] * 3, update_s=[1.0] * 3, staleness=1.0)
    found = {row.name: row for row in ppo.rows(SYNCHRONOUS, asynchronous)}
    assert found["a round, synchronous"].value == 3.0
    assert found["bound (C + T) / max(C, T)"].value == pytest.approx(1.5)
    assert found["share of the bound"].value == pytest.approx(share)
    assert found["share of the bound"].met is met
    assert found["largest staleness, asynchronous"].value == 1.0


@pytest.mark.extended
def test_rounds_of_a_real_vla_are_measured():
    sizes = [
        "algorithm.num_envs=2",
        "algorithm.rollout_steps=2",
        "algorithm.batch_size=4",
        "algorithm.num_epochs=1",
    ]
    found = ppo.measure(load([ppo.RECIPE], [*ppo.SETTINGS, *sizes]), num_rounds=2)
    assert len(found.collect_s) == len(found.update_s) == 2
    assert all(seconds > 0.0 for seconds in found.update_s)
    assert found.staleness <= 1.0  # algorithm.max_staleness of the recipe
