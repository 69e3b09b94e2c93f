"""RECAP: hand-worked values, advantages and thresholds, the dropped share, and a bandit with a known optimum."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.types import ActContext, View
from dovetail.learn.algorithms._step_values import (
    StepValues,
    Thresholds,
    advantages,
    prompt_numbers,
    steps_to_returns,
)
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.recap import RECAP, RECAPConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.setup import set_up
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.testing import check_algorithm

SMALL = {"horizon": 3, "hidden": 16, "num_layers": 1, "num_flow_steps": 2, "advantage_input": True}


@pytest.fixture
def make_policy(robot):
    return lambda seed=0, **config: Flow(FlowConfig(**(SMALL | config)), robot=robot, seed=seed)


def make(policy, seed=0, **config):
    return RECAP(
        RECAPConfig(**{"batch_size": 8, "value_hidden": (16,), "num_recent": 64, **config}),
        policy=policy,
        seed=seed,
    )


def empty_batch(algorithm, robot):
    batch = {name: torch.from_numpy(v) for name, v in batch_arrays(algorithm.sample_request, robot).items()}
    batch["steps_to_end"] += 1
    if "action/mask" in batch:
        batch["action/mask"][:] = True
    return batch


# ---- an algorithm


def test_resolves_by_name():
    assert resolve("algorithm", "recap") is RECAP


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        ({}, {"average": 0.9}),
        ({"horizon": 1}, {"demos_positive": False}),
        ({"history": {"joint_pos": 3}, "prompt_features": 4}, {"failure_steps": 3}),
    ],
)
def test_passes_check_algorithm(make_policy, robot, policy, config):
    """Among other things, a resumed algorithm gives identical weights."""
    check_algorithm(lambda: make(make_policy(**policy), **config), robot=robot)


def test_policies_without_an_indicator_are_refused(make_policy, policy):
    for other in (policy, make_policy(advantage_input=False)):
        with pytest.raises(UsageError, match="'recap' needs a policy that reads an advantage indicator"):
            make(other)


def test_several_ranks_are_refused(make_policy):
    with pytest.raises(UsageError, match=r"one process only. Set learner.ranks=1"):
        set_up(make(make_policy()), name="recap", size=2)


def test_state_of_another_value_model_raises_checkpoint_error(make_policy):
    with pytest.raises(CheckpointError, match="does not fit algorithm 'recap'"):
        make(make_policy(), num_bins=5).load_state_dict(make(make_policy()).state_dict())


def test_requests_failures_too(make_policy):
    request = make(make_policy(), num_steps=7).sample_request
    assert request.rows == {View(part="demo"): 2, View(part="online"): 6}
    assert request.outcomes
    assert (request.window.num_steps, request.window.horizon) == (7, 3)


# ---- values


def test_returns_are_negative_steps_and_failures_have_the_lowest():
    steps, success = torch.tensor([5, 20, 5, 100]), torch.tensor([True, True, False, True])
    found = steps_to_returns(steps, success, max_steps=50, failure_steps=50)
    assert found.tolist() == pytest.approx([-0.1, -0.4, -1.0, -1.0])
    assert steps_to_returns(steps, success, max_steps=50, failure_steps=10).tolist() == pytest.approx(
        [-0.1, -0.4, -0.3, -1.0]
    )


def test_value_loss_is_the_cross_entropy_with_the_two_nearest_bins():
    """Bins -1, -0.5, 0. A return of -0.4 has 0.8 of bin -0.5 and 0.2 of bin 0."""
    values = StepValues(num_features=1, hidden=(4,), num_bins=3)
    last = values.net[-1]
    torch.nn.init.zeros_(last.weight)
    with torch.no_grad():
        last.bias[:] = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    features = torch.zeros(1, 1)
    assert values(features).item() == pytest.approx(-0.65)
    expected = -(0.8 * np.log(0.3) + 0.2 * np.log(0.2))
    assert values.loss(features, torch.tensor([-0.4])).item() == pytest.approx(expected)
    assert values.loss(features, torch.tensor([0.0])).item() == pytest.approx(-np.log(0.2))
    assert values.loss(features, torch.tensor([-1.0])).item() == pytest.approx(-np.log(0.5))


def test_value_model_learns_the_share_of_failures():
    """Half of the episodes fail (-1), half succeed in 10 of 50 steps (-0.2): the mean is -0.6, and no bin between them."""
    values = StepValues(num_features=1, hidden=(16,), num_bins=51)
    optimizer = torch.optim.Adam(values.parameters(), lr=0.02)
    features, returns = torch.ones(8, 1), torch.tensor([-1.0, -0.2] * 4)
    for _ in range(200):
        optimizer.zero_grad()
        values.loss(features, returns).backward()
        optimizer.step()
    assert values(features)[0].item() == pytest.approx(-0.6, abs=0.02)
    shares = values.net(features)[0].softmax(-1)
    assert shares[[0, 40]].tolist() == pytest.approx([0.5, 0.5], abs=0.02)


def test_advantage_is_the_change_of_the_value_minus_the_steps():
    """n = 10 of 50 steps cost 0.2. Far from the end: V after - 0.2 - V before. Near it: the known return - V before."""
    found = advantages(
        torch.tensor([-0.9, -0.1, -1.0]),
        torch.tensor([45, 5, 10]),
        torch.tensor([-0.5, -0.5, -0.5]),
        torch.tensor([-0.1, -0.1, -0.1]),
        num_steps=10,
        max_steps=50,
    )
    assert found.tolist() == pytest.approx([-0.1 - 0.2 + 0.5, -0.1 + 0.5, -1.0 + 0.5])


# ---- indicators


def test_each_prompt_has_its_own_threshold():
    thresholds = Thresholds(positive_share=0.3, num_recent=1000)
    easy, hard = torch.arange(101) / 100.0, torch.arange(101) / 100.0 - 5.0
    thresholds.add(torch.cat((easy, hard)), torch.tensor([1] * 101 + [2] * 101))
    assert thresholds.of(torch.tensor([2, 1, 3])).tolist() == pytest.approx([-4.3, 0.7, 0.0])
    again = Thresholds(positive_share=0.3, num_recent=1000)
    again.load_state_dict(thresholds.state_dict())
    assert torch.equal(again.of(torch.tensor([2, 1, 3])), thresholds.of(torch.tensor([2, 1, 3])))


def test_thresholds_forget_old_advantages():
    thresholds = Thresholds(positive_share=0.5, num_recent=4)
    thresholds.add(torch.full((10,), 9.0), torch.zeros(10, dtype=torch.int64))
    thresholds.add(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(4, dtype=torch.int64))
    assert thresholds.of(torch.tensor([0])).item() == 2.5


def test_prompt_numbers_tell_texts_apart_and_ignore_padding():
    texts = [b"push the red cube", b"push the blue cube", b"hsup the red cube", b"push the red cube"]
    rows = torch.zeros(4, 40, dtype=torch.uint8)
    for row, text in enumerate(texts):
        rows[row, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    numbers = prompt_numbers(rows)
    assert numbers[0] == numbers[3]
    assert len(set(numbers.tolist())) == 3
    assert torch.equal(prompt_numbers(rows[:, :20]), numbers)


@pytest.mark.parametrize(("demos_positive", "expected"), [(True, [1, 1, 1, 1, -1]), (False, [-1, 1, 1, 1, -1])])
def test_steps_of_people_are_positive(make_policy, robot, demos_positive, expected):
    """Rows: two demonstrations, a correction, two steps of the policy. The median of the rows that people did not
    decide is -1.5 without the demonstrations, and -0.5 with them."""
    algorithm = make(
        make_policy(), batch_size=5, demo_share=0.4, demos_positive=demos_positive, positive_share=0.5
    )
    human = torch.tensor([True, True, True, False, False])
    advantage = torch.tensor([-1.0, 1.0, -9.0, 0.0, -3.0])
    found = algorithm._indicators(empty_batch(algorithm, robot), advantage, human)
    assert found.tolist() == expected


def test_about_the_wanted_share_is_positive(make_policy, robot):
    algorithm = make(make_policy(), batch_size=1000, demo_share=0.0, num_recent=4000, positive_share=0.3)
    batch, human = empty_batch(algorithm, robot), torch.zeros(1000, dtype=torch.bool)
    draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    shares = [(algorithm._indicators(batch, row, human) > 0).float().mean().item() for row in draws]
    assert shares == pytest.approx([0.3] * 4, abs=0.03)


def test_indicator_is_dropped_in_the_wanted_share_of_rows(make_policy, robot, monkeypatch):
    algorithm = make(make_policy(), batch_size=1000, dropped_share=0.3)
    batch, seen = empty_batch(algorithm, robot), []
    batch["human"][:500] = True
    features = algorithm._policy.features
    monkeypatch.setattr(
        algorithm._policy, "features", lambda given: (seen.append(given.get("advantage")), features(given))[1]
    )
    algorithm.update(batch)
    assert seen[:2] == [None, None]  # the value model reads no indicator
    (given,) = seen[2:]
    assert (given == 0).float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert set(given[:500].tolist()) == {0, 1}
    assert set(given[500:].tolist()) == {0, 1}  # all are equal to the threshold


def test_indicators_of_an_update_worked_out_by_hand(make_policy, robot, monkeypatch):
    """V is what joint 1 says. After 10 of 50 steps, A = V after - 0.2 - V before; near the end, A = return - V before.
    One online row of four is positive, and all demonstrations."""
    policy = make_policy()
    algorithm = make(
        policy, batch_size=6, demo_share=1 / 3, num_steps=10, max_steps=50, positive_share=0.25, dropped_share=0.0
    )
    batch, given = empty_batch(algorithm, robot), []
    batch["human"][:2] = True
    before = torch.tensor([-0.1, -0.9, -0.5, -0.5, -0.5, -0.5])
    after = torch.tensor([-0.9, -0.1, -0.4, -0.1, -0.3, -0.2])  # advantages of the last four by V: -0.1, 0.2, 0.0
    batch["observation/joint_pos"][:, 0], batch["next/joint_pos"][:, 0] = before, after
    batch["steps_to_end"][:] = torch.tensor([30, 30, 30, 30, 30, 5])
    batch["success"][:] = torch.tensor([True, True, True, True, True, False])  # the last: -1 - V before = -0.5
    monkeypatch.setattr(type(algorithm._values), "forward", lambda self, s: s[:, 0])
    features = policy.features
    monkeypatch.setattr(policy, "features", lambda seen: (given.append(seen.get("advantage")), features(seen))[1])
    algorithm.update(batch)
    assert given[-1].tolist() == [1, 1, -1, 1, -1, -1]


def test_actions_after_a_change_of_control_do_not_count(make_policy, robot):
    """The chunk is of the policy for two steps, then a person takes over."""
    losses = []
    for last in (0.0, 3.0):
        algorithm = make(make_policy())
        batch = empty_batch(algorithm, robot)
        batch["human"][:, 2] = True
        batch["action"][:, 2] = last
        losses.append(algorithm.update(batch)["imitation_loss"])
    assert losses[0] == losses[1]
    batch["human"][:] = False
    assert make(make_policy()).update(batch)["imitation_loss"] != losses[0]


def test_value_model_does_not_train_the_policy(make_policy, robot):
    """With all actions masked, the policy has no gradient of its own, and weight decay is off."""
    policy = make_policy(prompt_features=4)
    algorithm = make(policy, weight_decay=0.0)
    batch = empty_batch(algorithm, robot)
    batch["action/mask"][:] = False
    before = {name: [p.detach().clone() for p in m.parameters()] for name, m in policy.components.items()}
    algorithm.update(batch)
    for name, module in policy.components.items():
        assert all(torch.equal(a, b) for a, b in zip(before[name], module.parameters(), strict=True))


# ---- it learns


def test_bandit_finds_the_better_action(make_policy, robot):
    """One observation and two actions, -0.5 and 0.5, each in half of the data. The second one succeeds sooner. Cloning draws
    both; RECAP draws the second."""
    rng = np.random.default_rng(0)

    def bandit_batch(algorithm):
        batch = empty_batch(algorithm, robot)
        good = torch.from_numpy(rng.random(64) < 0.5)
        batch["action"][:] = torch.where(good, 0.5, -0.5)[:, None]
        batch["steps_to_end"][:] = torch.where(good, 5, 10)
        batch["success"][:] = True
        return batch

    def actions(policy):
        return policy.act({"joint_pos": np.zeros((200, 3), np.float32)}, ActContext(seed=1)).actions[:, 0, 0]

    sizes = {"horizon": 1, "hidden": 32, "num_flow_steps": 5}
    cloned = make_policy(**sizes)
    cloning = Imitation(ImitationConfig(batch_size=64, lr=3e-3), policy=cloned)
    plain = make(make_policy(**sizes), batch_size=64)
    for _ in range(300):
        cloning.update(bandit_batch(plain))
    assert 0.3 < (actions(cloned) > 0).mean() < 0.7

    policy = make_policy(**sizes)
    config = {"max_steps": 20, "num_steps": 20, "positive_share": 0.4, "num_recent": 1024}
    algorithm = make(policy, batch_size=64, lr=3e-3, **config)
    for _ in range(300):
        metrics = algorithm.update(bandit_batch(algorithm))
    assert (actions(policy) > 0.25).mean() > 0.95
    # a return of -0.25 or -0.5 at random: the value is their mean, and the error is half of the difference
    assert metrics["value_error"] == pytest.approx(0.125, abs=0.02)


def test_other_algorithms_imitate_as_positive_and_leave_some_rows_without(make_policy, robot, monkeypatch):
    """So a cloned policy already knows the indicator with which it acts, and guidance has its comparison."""
    policy = make_policy()
    seen, features = [], policy.features
    monkeypatch.setattr(policy, "features", lambda given: (seen.append(given["advantage"]), features(given))[1])
    algorithm = Imitation(ImitationConfig(batch_size=1000), policy=policy)
    algorithm.update(empty_batch(make(make_policy(), batch_size=1000), robot))
    (given,) = seen
    assert set(given.tolist()) == {0, 1}
    assert (given == 0).float().mean().item() == pytest.approx(0.3, abs=0.04)
