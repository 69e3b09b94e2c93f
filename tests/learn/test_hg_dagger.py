"""HG-DAgger clones whole chunks of corrections and a share of demonstrations, and no steps of the policy."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import CheckpointError
from dovetail.core.types import View
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.networks import masked_mse
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch
from support.joint_arm import (
    ARM,
    HORIZON,
    TWO_ARMS,
    ImitateEverything,
    chunks_of,
    learner_of,
    make_episode,
    make_flow,
    spy_on,
)


def make(policy=None, **config):
    return HGDAgger(HGDAggerConfig(**{"batch_size": 8, **config}), policy=policy or make_flow(), seed=1)


def steps(first, count):
    """Actions that contain the number of their step: (i / 100, -i / 100)."""
    ticks = first + np.arange(count)
    return np.stack((ticks, -ticks), axis=1) / 100


def test_requests_whole_corrections_and_demonstrations():
    request = make(make_flow(history={"joint_pos": 2}), batch_size=10, demo_share=0.3).sample_request
    assert request.rows == {View(part="demo"): 3, View(part="human", min_source_run=HORIZON): 7}
    assert request.window.horizon == HORIZON
    assert request.window.history == {"joint_pos": 2}
    assert not request.next_observations
    single = make(make_flow(horizon=1)).sample_request
    assert View(part="human") in single.rows  # each of its steps is a whole chunk


def test_only_whole_human_chunks_of_online_episodes_are_cloned(open_replay):
    """Steps 5..10 are a correction. 14..16 are one too, but shorter than a chunk. The policy acted in the rest."""
    online = make_episode("online", steps(0, 20), human=(*range(5, 11), *range(14, 17)))
    demo = make_episode("demo", steps(50, 5), demo=True)
    algorithm = make()
    given = spy_on(algorithm._policy)
    learner = learner_of(algorithm, open_replay(online, demo))
    metrics = learner.step(env_steps=30)
    lengths = {"demo": set(), "online": set()}
    begun = set()
    for actions, mask in given:
        for chunk, known in zip((actions * 100).round().int().numpy(), mask.numpy(), strict=True):
            length = int(known.sum())
            assert chunk[:length, 0].tolist() == list(range(chunk[0, 0], chunk[0, 0] + length))
            lengths["demo" if chunk[0, 0] >= 50 else "online"].add(length)
            if chunk[0, 0] < 50:
                begun.add(int(chunk[0, 0]))
    assert begun == {5, 6, 7}  # starts of four human steps in a row
    assert lengths == {"online": {HORIZON}, "demo": {1, 2, 3, 4}}  # demonstrations are cloned to their end
    assert metrics["whole_correction_share"] == pytest.approx(3 / 9)


@pytest.mark.parametrize("horizon", [HORIZON, 1])
def test_correction_of_one_arm_does_not_clone_the_policy_of_the_other(open_replay, horizon):
    """A person drives the left arm in steps 5..10 and both arms in the demonstration."""
    online = make_episode("online", steps(0, 20), human=range(5, 11), robot=TWO_ARMS, human_axes=(True, False))
    demo = make_episode("demo", steps(50, 8), demo=True, robot=TWO_ARMS)
    algorithm = make(make_flow(TWO_ARMS, horizon=horizon))
    given = spy_on(algorithm._policy)
    learner_of(algorithm, open_replay(online, demo), robot=TWO_ARMS).step(env_steps=30)
    (actions, mask), *_ = given
    assert mask.shape == actions.shape == (8, *((HORIZON,) if horizon > 1 else ()), 2)
    is_demo = actions.view(8, -1)[:, 0] >= 0.5
    assert is_demo.sum() == 4
    assert not mask[~is_demo][..., 1].any() and mask[~is_demo][..., 0].all()
    assert mask[is_demo].view(4, -1)[:, :2].all()  # both axes of the first action


def test_axes_without_a_mask_do_not_change_the_loss():
    """Errors 1 and 3 at the driven axis, 100 at the other: the mean is (1 + 9) / 2."""
    predicted = torch.zeros(1, 2, 2)
    target = torch.tensor([[[1.0, 100.0], [3.0, 100.0]]])
    mask = torch.tensor([[[True, False], [True, False]]])
    assert masked_mse(predicted, target, mask) == 5.0
    assert masked_mse(predicted, target, mask, torch.tensor([[True, True]])) == 5.0
    assert masked_mse(predicted, target, torch.tensor([[True, False]])) == pytest.approx((1 + 100**2) / 2)


def test_demonstration_shorter_than_a_chunk_is_cloned_to_its_end(open_replay):
    demo = make_episode("demo", steps(50, HORIZON - 1), demo=True)
    algorithm = make()
    given = spy_on(algorithm._policy)
    learner = learner_of(algorithm, open_replay(demo))
    learner.warm_up(2)
    learner.step(env_steps=3)
    assert (learner.num_warmup_updates, learner.num_online_updates) == (2, 3)
    assert all((actions[:, 0, 0] > 0.495).all() and mask.sum(1).max() < HORIZON for actions, mask in given)


def test_half_of_each_batch_is_demonstrations(open_replay):
    online = make_episode("online", steps(0, 12), human=range(12))
    demo = make_episode("demo", steps(50, 12), demo=True)
    algorithm = make()
    given = spy_on(algorithm._policy)
    learner_of(algorithm, open_replay(online, demo)).step(env_steps=3)
    for actions, _ in given:
        assert (actions[:, 0, 0] > 0.495).tolist() == [True] * 4 + [False] * 4


def test_clones_demonstrations_before_the_first_correction(open_replay):
    demo, online = make_episode("demo", steps(50, 9), demo=True), make_episode("online", steps(0, 9))
    algorithm = make()
    given = spy_on(algorithm._policy)
    metrics = learner_of(algorithm, open_replay(online, demo)).step(env_steps=4)
    assert all((actions[:, 0, 0] > 0.495).all() for actions, _ in given)
    assert "whole_correction_share" not in metrics  # no correction yet


def test_waits_for_a_correction_without_demonstrations(open_replay):
    algorithm = make()
    replay = open_replay(make_episode("one", steps(0, 9), human=(3, 4)))  # too short for a chunk
    learner = learner_of(algorithm, replay)
    assert learner.step(env_steps=9) == {}
    assert learner.num_online_updates == 0
    replay.add(*make_episode("two", steps(20, 9), human=range(2, 8)))
    given = spy_on(algorithm._policy)
    learner.step(env_steps=18)
    assert learner.num_online_updates == 18
    begun = {round(100 * float(a)) for actions, _ in given for a in actions[:, 0, 0]}
    assert begun <= {22, 23, 24}


def test_gradients_are_clipped():
    algorithm = make(max_grad_norm=1e-3)
    batch = random_batch(algorithm.sample_request, ARM, np.random.default_rng(0))
    algorithm.update({name: torch.from_numpy(values) for name, values in batch.items()})
    norms = torch.stack([p.grad.norm() for p in algorithm._parameters])
    assert norms.norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("config", [{}, {"horizon": 1}, {"history": {"joint_pos": 3}}, {"prompt_features": 4}])
def test_passes_check_algorithm(config):
    check_algorithm(lambda: make(make_flow(**config)), robot=ARM)


def test_trains_a_policy_of_single_actions(policy, robot):
    check_algorithm(lambda: make(type(policy)(policy.Config(hidden=(16,)), robot=robot, seed=0)), robot=robot)


def test_resumed_learner_is_identical(open_replay):
    replay = open_replay(
        make_episode("online", steps(0, 20), human=range(4, 14)), make_episode("demo", steps(50, 9), demo=True)
    )
    learner = learner_of(make(), replay)
    learner.step(env_steps=7)
    state = {name: np.array(value) for name, value in learner.state_dict().items()}
    expected = learner.step(env_steps=15)
    resumed = learner_of(make(), replay)
    resumed.load_state_dict(state)
    assert resumed.step(env_steps=15) == expected
    assert all(
        np.array_equal(value, resumed.policy_weights()["actor"][name])
        for name, value in learner.policy_weights()["actor"].items()
    )


def test_state_of_another_policy_raises_checkpoint_error():
    with pytest.raises(CheckpointError, match="does not fit algorithm 'hg_dagger'"):
        make().load_state_dict(make(make_flow(horizon=8)).state_dict())


# ---- does it learn?


def rate_of(policy, place):
    """Share of correct directions: down if the second joint is up, and up if it is down."""
    rng = np.random.default_rng(5)
    states = np.stack((rng.uniform(-1, 1, 200), np.full(200, place)), axis=1)
    return float((np.sign(chunks_of(policy, states)[:, 0, 1]) == -np.sign(place)).mean())


@pytest.mark.extended
def test_corrections_improve_the_policy_and_cloning_everything_does_not(open_replay):
    """Demonstrations cover one place. At the other place the policy moves in the same, wrong direction until a
    person takes over."""
    rng = np.random.default_rng(0)

    def episode(name, place, moves, **resumed):
        actions = np.stack((rng.uniform(-1, 1, len(moves)), np.asarray(moves)), axis=1)
        built, labels = make_episode(name, actions, start=(0.0, place), **resumed)
        built.segments[0].columns["observation/joint_pos"][:, 1] = place  # the joint does not move
        return built, labels

    demos = [episode(f"demo-{n}", -1.0, np.full(10, 0.6), demo=True) for n in range(6)]
    online = [episode(f"online-{n}", 1.0, [*[0.6] * 12, *[-0.6] * 6], human=range(12, 18)) for n in range(6)]
    cloned = make_flow()
    learner_of(Imitation(ImitationConfig(batch_size=32), policy=cloned), open_replay(*demos)).warm_up(200)
    assert rate_of(cloned, -1.0) > 0.95
    assert rate_of(cloned, 1.0) < 0.3
    start = cloned.weights()

    improved, misled = make_flow(), make_flow()
    settings = {"batch_size": 32, "lr": 1e-3}
    for policy, algorithm in (
        (improved, HGDAgger(HGDAggerConfig(**settings), policy=improved)),
        (misled, ImitateEverything(ImitationConfig(**settings), policy=misled)),
    ):
        for name, module in policy.components.items():
            module.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in start[name].items()})
        learner_of(algorithm, open_replay(*demos, *online)).step(env_steps=300)
    assert rate_of(improved, 1.0) > 0.95
    assert rate_of(improved, -1.0) > 0.95  # nothing is forgotten
    assert rate_of(misled, 1.0) < 0.6
