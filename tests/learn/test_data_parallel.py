"""A step in micro-batches, or by several processes, equals the step of one process."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest, View
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.setup import set_up
from dovetail.policies.images.encoders import random_shift
from dovetail.policies.random_draws import SharedGenerator, normal, uniform
from support import TESTS
from support.data_parallel_process import learn
from support.small_algorithms import algorithms, batch_for


def close(a, b):
    """Equal up to the rounding of sums in another order."""
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=2e-3, atol=2e-5, err_msg=key)


def weights(algorithm):
    return {k: v for k, v in algorithm.state_dict().items() if not k.startswith(("optimizer", "generator"))}


def test_micro_batches_give_the_gradient_of_one_batch(policy, batch):
    """Adam hides a gradient's scale, so the gradients are compared."""
    gradients = []
    for count in (1, 2, 4):
        algorithm = Imitation(ImitationConfig(batch_size=8), policy=policy)
        set_up(algorithm, name="imitation", accumulate=count)
        algorithm._optimizer.step = lambda: None
        loss, norm = algorithm._minimize(batch, algorithm._loss)
        gradients.append([loss, norm, *(p.grad.clone() for p in algorithm._parameters)])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_micro_batches_are_weighted_by_their_content(robot):
    """With masks and weights, the mean of means differs from the mean. Here: 1 action of weight 4, 3 of weight 1."""
    policy = algorithms(robot)["hi_ors"]._policy
    algorithm = HiORS(
        HiORSConfig(batch_size=2, demo_share=0.0, imitated_actions="executed", min_motion_std=0.0), policy=policy
    )
    set_up(algorithm, name="hi_ors", accumulate=2)
    losses = iter((torch.tensor(10.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)))
    policy.imitation_loss = lambda *_, **__: next(losses)
    batch = {k: v[:2] for k, v in batch_for(algorithm).items()}
    batch["human"][:] = torch.tensor([[True] * 4, [False] * 4])
    batch["action/mask"][:] = torch.tensor([[True, False, False, False], [True, True, True, False]])
    algorithm._optimizer.step = lambda: None
    metrics = algorithm.update(batch)
    assert metrics["imitation_loss"] == pytest.approx((4 * 10.0 + 3 * 2.0) / 7)


def test_no_micro_batch_is_empty():
    """The mean over none is NaN; a rollout's last batch may be a single row."""
    pieces = DataParallel(num_micro_batches=3).micro_batches({"index": torch.arange(2)})
    assert [piece["index"].tolist() for piece in pieces] == [[0], [1]]
    assert len(DataParallel(num_micro_batches=3).micro_batches({"index": torch.arange(1)})) == 1


def test_micro_batch_without_valid_actions_is_ignored(robot):
    algorithm = algorithms(robot)["hi_ors"]
    set_up(algorithm, name="hi_ors", accumulate=4)
    batch = batch_for(algorithm)
    batch["action/mask"][::4] = False
    assert np.isfinite(algorithm.update(batch)["imitation_loss"])
    batch["action/mask"][:] = False
    before = weights(algorithm)
    assert "imitation_loss" not in algorithm.update(batch)
    after = weights(algorithm)
    assert all(np.array_equal(before[k], after[k]) for k in before if k != "num_updates")


def test_unsupported_divisions_raise_usage_error(policy):
    algorithm = Imitation(ImitationConfig(batch_size=9), policy=policy)
    with pytest.raises(UsageError, match=r"a batch of 9 rows cannot be divided by learner\.ranks=2"):
        set_up(algorithm, name="imitation", size=2)
    with pytest.raises(UsageError, match="does not support micro-batches"):
        set_up(RLPD(RLPDConfig(batch_size=8), policy=policy), name="rlpd", accumulate=2)
    averaging = HGDAgger(HGDAggerConfig(batch_size=8, average=0.9), policy=policy)
    with pytest.raises(UsageError, match=r"Set algorithm\.average=0"):  # before any demonstration is recorded
        set_up(averaging, name="hg_dagger", size=2, shard=True)
    with pytest.raises(UsageError, match="has no `networks`"):
        set_up(object(), name="mine", accumulate=2)


def test_each_process_gets_every_nth_row():
    request = SampleRequest(observation_keys=(), rows={View(part="demo"): 3, View(part="online"): 5})
    shares = [DataParallel(rank=rank, size=2).rows_per_view(request) for rank in (0, 1)]
    assert [list(share.values()) for share in shares] == [[2, 2], [1, 3]]  # rows 0 2 | 4 6 and 1 | 3 5 7


def test_processes_draw_the_noise_of_the_whole_batch():
    whole = torch.Generator().manual_seed(3)
    parts = [SharedGenerator.of(device=torch.device("cpu"), rank=r, size=2) for r in (0, 1)]
    for part in parts:
        part.manual_seed(3)
    cpu = torch.device("cpu")
    for draw, shape, rows in ((normal, (8, 3), 0), (normal, (4, 20, 2), 1), (uniform, (16,), 0)):
        drawn = draw(shape, generator=whole, device=cpu)
        half = tuple(n // 2 if axis == rows else n for axis, n in enumerate(shape))
        for rank, part in enumerate(parts):
            mine = draw(half, generator=part, device=cpu, rows=rows)
            assert torch.equal(mine, drawn.transpose(0, rows)[rank::2].transpose(0, rows))


def test_processes_shift_images_as_in_the_whole_batch():
    frames = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (8, 9, 9, 3), dtype=np.uint8))
    whole = random_shift(frames, pad=3, generator=torch.Generator().manual_seed(3))
    for rank in (0, 1):
        shared = SharedGenerator.of(device=torch.device("cpu"), rank=rank, size=2).manual_seed(3)
        assert torch.equal(random_shift(frames[rank::2], pad=3, generator=shared), whole[rank::2])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """States of two real processes after updates, each on its half of the rows."""
    folder = tmp_path_factory.mktemp("ranks")
    outs = [folder / f"{rank}.npz" for rank in (0, 1)]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.data_parallel_process",
                str(folder / "meeting"),
                str(rank),
                "2",
                str(out),
            ],
            cwd=TESTS,
        )
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(240) for process in processes] == [0, 0]
    return [{key.replace("\\", "/"): value for key, value in np.load(out).items()} for out in outs]


@pytest.fixture(scope="module")
def one_process():
    torch.set_num_threads(1)
    return learn(0, 1)


@pytest.mark.extended
def test_ranks_have_identical_states(two):
    first, second = two
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_all_ranks_skip_an_update_that_fails_on_one(two):
    names = {key.split("|")[0] for key in two[0] if key.endswith("|skipped")}
    one_loss = {"imitation", "hg_dagger", "hi_ors", "hi_ors_of_singles"}
    assert names == {"rlpd", "sac_flow", "dsrl"} | one_loss | {f"sharded {name}" for name in one_loss}


@pytest.mark.parametrize("name", ["rlpd", "sac_flow", "dsrl", "imitation", "hg_dagger", "hi_ors_of_singles"])
def test_two_ranks_match_one_process(two, one_process, name):
    """Regression: gradients were never synchronized."""
    alone = {k: v for k, v in one_process.items() if k.startswith(name + "|")}
    skip = ("skipped", "generator", "num_updates", "optimizer")
    together = {k: v for k, v in two[0].items() if k.startswith(name + "|")}
    wanted = [k for k in alone if not any(part in k for part in skip)]
    close({k: alone[k] for k in wanted}, {k: together[k] for k in wanted})


@pytest.mark.parametrize("name", ["imitation", "hg_dagger", "hi_ors"])
def test_sharded_policy_matches_unsharded(two, name):
    """The state of a sharded policy is complete, with optimizer and generator."""
    plain = {k.removeprefix(name): v for k, v in two[0].items() if k.startswith(f"{name}|") and "skipped" not in k}
    found = {k.removeprefix(f"sharded {name}"): v for k, v in two[0].items() if k.startswith(f"sharded {name}|")}
    found = {k: v for k, v in found.items() if "skipped" not in k}
    close(plain, found)
