"""The multiply-adds of an update counted by hand, and the bench on tiny networks."""

import math

import pytest
import torch

from benchmarks import _learn_peers as peers
from benchmarks.learn_peers import InstalledPeers
from dovetail.bench._learn_floor import mlp_macs, ppo_macs, soft_macs
from dovetail.bench._learn_ours import make_batch, our_sac
from dovetail.bench.learn_speed import Sizes, bench, race

TINY = Sizes(hidden=(8, 8), batch=4, rounds=2, rollout=(2, 4), image=16)


def test_multiply_adds_of_a_tiny_network():
    sizes = (2, 3, 1)  # weights: 2 x 3 and 3 x 1
    assert mlp_macs(sizes) == 6 + 3
    assert (
        mlp_macs(sizes, parameters=True) == 9 + 9 + 3
    )  # forward, each weight's gradient, back through the last layer
    assert mlp_macs(sizes, inputs=1) == 9 + 3 + 3  # forward, back through the last layer, one column of the first


def test_multiply_adds_of_an_update_of_a_tiny_actor_critic():
    # actor 2 -> 3 -> 2: 12 per row, gradient 12 + 6. critic 3 -> 3 -> 1: 12 per row, gradient 12 + 3; gradient for one
    # action 3 + 3, only of the smallest of the five
    per_row = 12 + 2 * 12 + 5 * (12 + 15) + (5 * 12 + 6) + (12 + 18)
    assert soft_macs(features=2, actions=1, hidden=(3,), batch=4, critics=5, targets=2) == 4 * per_row


def test_multiply_adds_of_an_epoch():
    # actor and value 2 -> 3 -> 1: 9 per row before the epoch, 21 in it
    assert ppo_macs(features=2, actions=1, hidden=(3,), rows=10) == 10 * 2 * (9 + 21)


def test_race_measures_cpu_time():
    seconds = race({"rest": lambda: None, "work": lambda: sum(range(20_000))}, rounds=3)
    assert 0 <= seconds["rest"] < seconds["work"]


def test_loop_over_critics_learns_like_the_ensemble():
    batch = make_batch(4)
    for looped in (False, True):
        torch.manual_seed(0)
        update = our_sac(batch, hidden=(8, 8), critics=3, looped=looped)
        losses = [update()["critic_loss"] for _ in range(60)]
        assert sum(losses[-10:]) < sum(losses[:10])


def test_peers_change_their_weights():
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("torchrl")
    batch = make_batch(4)
    for make in (peers.sb3_sac, peers.torchrl_sac):
        torch.manual_seed(0)
        update = make(batch, hidden=(8, 8), critics=2)
        cells = [cell.cell_contents for cell in update.__closure__]
        modules = [c for c in cells if isinstance(c, torch.nn.Module)] or [
            c.policy for c in cells if hasattr(c, "policy")
        ]
        before = [p.detach().clone() for m in modules for p in m.parameters()]
        update()
        after = [p for m in modules for p in m.parameters()]
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_bench_yields_positive_rows():
    rows = {row.name: row for row in bench(quick=True, sizes=TINY, peers=InstalledPeers())}
    aimed = {name for name, row in rows.items() if row.aim is not None}
    assert "SAC, 2 critics, state: share of the arithmetic's speed" in aimed
    assert "RLPD, 10 critics, state: times a loop over critics" in aimed
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows.values())
