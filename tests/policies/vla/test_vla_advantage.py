"""RECAP on every VLA: the indicator is text in the prompt, guidance compares with and without it, and a bandit is solved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.recap import RECAP, RECAPConfig
from dovetail.policies.trainable import AdvantageConditioned
from dovetail.policies.vla.training import flow_matching_errors
from dovetail.testing.algorithms import random_batch
from support.small_vlas import SMALL_VLAS, write_small_vla
from support.vla_rank import arm

HORIZON = 4


@pytest.fixture(scope="module")
def robot():
    return arm()


@pytest.fixture(params=SMALL_VLAS)
def family(request):
    return SMALL_VLAS[request.param]


@pytest.fixture
def make(family, robot, tmp_path_factory):
    def make_policy(*, horizon=HORIZON, **settings):
        folder = tmp_path_factory.getbasetemp() / f"advantage-{family.name}-{horizon}"
        if not folder.exists():
            write_small_vla(family.name, folder, horizon=horizon)
        given = {
            "state": ("joint_pos", "gripper"),
            "fit_stats": True,
            "freeze_vision": True,
            "num_flow_steps": 5,
            "advantage_input": True,
            **settings,
        }
        policy = family.make(folder, robot=robot, **given)
        values = np.linspace(-1.0, 1.0, 200, dtype=np.float32)[:, None]
        size = robot.action.shape[0]
        policy.fit_normalizer(
            {
                "joint_pos": values.repeat(7, 1),
                "gripper": values.repeat(2, 1),
                "action": 0.01 * values.repeat(size, 1),
            }
        )
        return policy

    return make_policy


def seen(num_rows, prompt="push the red cube to the mark"):
    rng = np.random.default_rng(0)
    return {
        "joint_pos": rng.normal(size=(num_rows, 7)).astype(np.float32),
        "gripper": rng.normal(size=(num_rows, 2)).astype(np.float32),
        "front": rng.integers(0, 256, (num_rows, 32, 32, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt(prompt)] * num_rows),
    }


def tensors(num_rows, **more):
    found = {key: torch.from_numpy(value) for key, value in seen(num_rows).items()}
    return {**found, **{key: torch.tensor(value) for key, value in more.items()}}


def words(policy, features, row):
    tokens = features["tokens"][row][features["token_mask"][row]]
    return policy._tokenizer._tokenizer.decode(tokens.tolist())


def test_indicator_is_text_behind_the_task(make, family):
    policy = make()
    assert isinstance(policy, AdvantageConditioned)
    features = policy.features(tensors(3, advantage=[1, -1, 0]))
    task = "push the red cube to the mark"
    found = [words(policy, features, row).strip() for row in range(3)]
    if family.name == "pi05":  # Task: T, State: 128 7 ...;
        found = [text.removeprefix("Task: ").partition(", State:")[0] for text in found]
    assert found == [f"{task}, advantage: positive", f"{task}, advantage: negative", task]
    without, num = policy.features(tensors(3)), features["token_mask"][2].sum()
    assert torch.equal(without["tokens"][2, :num], features["tokens"][2, :num])
    assert without["token_mask"][2].sum() == num


def test_padding_of_the_batch_changes_no_loss(make):
    """A row with a short prompt, next to a long one and alone: padding is masked, and a batch has no more than it needs."""
    policy = make()
    errors = []
    for indicators in ([0, 1], [0]):
        num = len(indicators)
        observed = {key: value[:num] for key, value in tensors(2).items()}
        features = policy.features({**observed, "advantage": torch.tensor(indicators)})
        assert features["tokens"].shape[1] == features["token_mask"].sum(1).max()
        with torch.no_grad():
            of_rows = flow_matching_errors(
                policy.network,
                policy._network_inputs(features),
                torch.ones(num, HORIZON, 6),
                torch.full((num,), 0.5),
            )
        errors.append(of_rows[0])
    torch.testing.assert_close(*errors)


def test_act_is_positive_and_guidance_is_none_plus_weighted_difference(make):
    """Two Euler steps by hand from the velocities with and without the words."""
    observations, context = seen(2), ActContext(seed=5)
    for weight in (1.0, 2.5):
        policy = make(advantage_guidance=weight, num_flow_steps=2)
        found = policy.act(observations, context).actions
        inputs = {one: policy._network_inputs(policy.features(tensors(2, advantage=[one, one]))) for one in (0, 1)}
        x = policy._noise(2, context)
        with torch.no_grad():
            for step in range(2):
                time = policy.network.embed_times(torch.tensor([1.0 - step / 2]))
                v = {
                    one: policy.network.velocity(x, time, policy.network.prefix(*given[:-1]))
                    for one, given in inputs.items()
                }
                assert not torch.allclose(v[0], v[1])
                x = x - (v[0] + weight * (v[1] - v[0])) / 2
        actions = policy._setup.action.revert(x[..., :6].numpy())
        low, high = policy._robot.action.bounds
        np.testing.assert_allclose(found, np.clip(actions, low, high), atol=1e-6)


def test_guided_chunk_continues_committed_actions(make):
    policy = make(advantage_guidance=2.0)
    first = policy.act(seen(2), ActContext(seed=1)).actions
    context = ActContext(seed=2, prefix=first, delay=2, horizon=2)
    chunk = policy.act(seen(2), context).actions
    plain = policy.act(seen(2), ActContext(seed=2)).actions
    assert chunk.shape == first.shape
    assert np.abs(chunk[:, :2] - first[:, :2]).mean() < np.abs(plain[:, :2] - first[:, :2]).mean()


def test_prompt_without_room_for_the_indicator_is_refused(make):
    long = "push the red cube to the mark and " * 20
    with pytest.raises(UsageError, match=r"its advantage would be cut off\. Shorten it: '(Task: )?push the red"):
        make().act(seen(1, long), ActContext(seed=0))
    without = make(advantage_input=False)
    if without.family.name == "pi05":  # its state follows the prompt
        with pytest.raises(UsageError, match="the state would be cut off"):
            without.act(seen(1, long), ActContext(seed=0))
    else:  # as published models do it, the prompt is cut
        without.act(seen(1, long), ActContext(seed=0))


def test_recap_refuses_a_vla_without_the_words(make, family):
    with pytest.raises(UsageError, match=rf"'{family.name}' does not\. Use policy 'flow', 'pi0'"):
        RECAP(RECAPConfig(), policy=make(advantage_input=False))


def test_resumed_updates_are_identical(make, robot):
    """Weights, value model, thresholds and random numbers."""

    def build():
        config = RECAPConfig(batch_size=4, average=0.9, value_hidden=(8,), num_recent=64)
        return RECAP(config, policy=make())

    def batch(number):
        arrays = random_batch(build().sample_request, robot, np.random.default_rng(number))
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    straight, first, resumed = build(), build(), build()
    for number in range(3):
        straight.update(batch(number))
        if number < 2:
            first.update(batch(number))
    resumed.load_state_dict(first.state_dict())
    resumed.update(batch(2))
    expected, found = straight.state_dict(), resumed.state_dict()
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


@pytest.mark.extended
def test_bandit_finds_the_better_action(make, family):
    """One observation and two actions, -0.5 and 0.5 of the largest one, each in half of the data. The second one succeeds
    sooner. Cloning draws both; RECAP draws the second."""
    rng = np.random.default_rng(0)
    rows = 32

    def bandit_batch():
        good = torch.from_numpy(rng.random(rows) < 0.5)
        observed = {key: value[:1].expand(rows, *value.shape[1:]) for key, value in tensors(1).items()}
        prompt = observed.pop("prompt")
        return {
            **{f"observation/{key}": value for key, value in observed.items()},
            **{f"next/{key}": value for key, value in observed.items()},
            "prompt": prompt,
            "action": torch.where(good, 0.005, -0.005)[:, None].expand(rows, 6),
            "human": torch.zeros(rows, dtype=torch.bool),
            "steps_to_end": torch.where(good, 5, 10),
            "success": torch.ones(rows, dtype=torch.bool),
        }

    def actions(policy):
        observed = {key: np.repeat(value[:1], 100, axis=0) for key, value in seen(1).items()}
        return policy.act(observed, ActContext(seed=1)).actions[:, 0, 0]

    cloned = make(horizon=1, advantage_input=False)
    cloning = Imitation(ImitationConfig(batch_size=rows, lr=1e-3), policy=cloned)
    for _ in range(150):
        cloning.update(bandit_batch())
    assert 0.25 < (actions(cloned) > 0).mean() < 0.75

    policy = make(horizon=1, advantage_guidance=1.5)
    config = RECAPConfig(
        batch_size=rows,
        demo_share=0.0,
        lr=1e-3,
        max_steps=20,
        num_steps=20,
        positive_share=0.4,
        num_recent=512,
        value_hidden=(16,),
    )
    algorithm = RECAP(config, policy=policy)
    for _ in range(200 if family.name == "pi0" else 400):  # the others learn more slowly with these sizes
        algorithm.update(bandit_batch())
    # random small models of the other families learn it less sharply; without the indicator it is 0.5
    assert (actions(policy) > 0).mean() > (0.95 if family.name == "pi0" else 0.75)
