"""Hi-ORS: accepted episodes, skipped chunks, imitated actions and their weights, against hand-computed numbers."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import View
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.learner import Learner
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing import check_algorithm
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.joint_arm import (
    ARM,
    HORIZON,
    ImitateEverything,
    chunks_of,
    learner_of,
    make_episode,
    make_flow,
    spy_on,
)

GRIPPING = dataclasses.replace(
    ARM,
    action=ArraySpec(shape=(3,), names=("j1", "j2", "gripper"), low=(-1.0,) * 3, high=(1.0,) * 3),
    observation={**ARM.observation, "gripper": ArraySpec(shape=(1,))},
)
CARTESIAN = dataclasses.replace(
    ARM,
    action=ArraySpec(shape=(6,), low=(-1.0,) * 6, high=(1.0,) * 6),
    action_kind="ee_delta",
    observation={"ee_pose": ArraySpec(shape=(7,))},
)


def make(policy=None, **config):
    config = {"batch_size": 8, "demo_share": 0.0, **config}
    return HiORS(HiORSConfig(**config), policy=policy or make_flow(), seed=1)


def batch_of(algorithm, robot=ARM, seed=0):
    """Whole chunks of the policy with motion, none at an end; the achieved motion is half of the command."""
    rng = np.random.default_rng(seed)
    batch = {
        name: torch.from_numpy(values) for name, values in batch_arrays(algorithm.sample_request, robot).items()
    }
    for name in batch:
        if name == "action" or name.startswith("observation/"):
            batch[name][:] = torch.from_numpy(rng.uniform(-1, 1, batch[name].shape))
    batch["achieved"][:] = 0.5 * batch["action"]
    batch["discount"][:] = 1.0
    if "action/mask" in batch:
        batch["action/mask"][:] = True
    return batch


# ---- what is accepted


def test_threshold_rises_with_each_round():
    algorithm = make(return_thresholds=(0.2, 0.4, 0.6), updates_per_round=3)
    batch, bars = batch_of(algorithm), []
    for _ in range(8):
        assert (
            View(part="online", return_above=algorithm.threshold, min_episode_steps=3)
            in algorithm.sample_request.rows
        )
        bars.append(algorithm.update(batch)["threshold"])
    assert bars == [0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 0.6, 0.6]
    with pytest.raises(ValueError, match="must not fall"):
        HiORSConfig(return_thresholds=(0.5, 0.4))


def test_requests_accepted_episodes():
    algorithm = make(
        batch_size=10, demo_share=0.3, min_episode_steps=5, return_thresholds=(0.1, 0.9), updates_per_round=1
    )
    algorithm.update(batch_of(algorithm))
    request = algorithm.sample_request
    assert request.rows == {
        View(part="demo", return_above=0.9, min_episode_steps=5): 3,
        View(part="online", return_above=0.9, min_episode_steps=5): 7,
    }
    assert request.when_empty == View(return_above=0.1, min_episode_steps=5)
    assert (request.window.horizon, request.window.num_steps, request.window.gamma) == (HORIZON, HORIZON, 1.0)
    assert request.achieved


def marked(name, mark, num_steps=6, **resumed):
    """An episode that is identified by the value of its first joint."""
    moves = np.stack((np.full(num_steps, mark), np.linspace(-0.5, 0.5, num_steps)), axis=1)
    return make_episode(name, moves, **resumed)


def marks(given):
    return {round(float(mark), 1) for actions, _ in given for mark in actions[:, 0, 0]}


def test_only_accepted_episodes_are_imitated(open_replay):
    slow = [0.0, -0.2, -0.2, 0.0, 0.0, 1.0]  # adds up to 0.6
    replay = open_replay(
        marked("failed", 0.1, success=False),
        marked("succeeded", 0.2),
        marked("slow", 0.3, rewards=slow),
        marked("short", 0.4, num_steps=2),
        marked("three", 0.5, num_steps=3),
        marked("demo", 0.6, demo=True),
    )
    algorithm = make(return_thresholds=(0.5, 0.7, 2.0), updates_per_round=40)
    given, learner = spy_on(algorithm._policy), learner_of(algorithm, replay)
    metrics = learner.step(env_steps=40)
    assert marks(given) == {0.2, 0.3, 0.5}
    assert metrics["accepted_share"] == pytest.approx((6 + 6 + 3) / (6 + 6 + 6 + 2 + 3))
    given.clear()
    learner.step(env_steps=80)
    assert marks(given) == {0.2, 0.5}
    given.clear()
    metrics = learner.step(env_steps=120)  # no episode passes: those above the first threshold are used
    assert marks(given) == {0.2, 0.3, 0.5, 0.6}
    assert metrics["accepted_share"] == 0.0


def test_round_may_end_within_a_learner_step(open_replay):
    """Regression: views were read once per step, so a resumed run drew from other views."""
    slow = [0.0, -0.2, -0.2, 0.0, 0.0, 1.0]  # adds up to 0.6
    replay = open_replay(marked("succeeded", 0.2), marked("slow", 0.3, rewards=slow))
    algorithm = make(return_thresholds=(0.5, 0.7), updates_per_round=5)
    given = spy_on(algorithm._policy)
    learner_of(algorithm, replay).step(env_steps=12)
    assert len(given) == 12
    assert marks(given[:5]) == {0.2, 0.3}
    assert marks(given[5:]) == {0.2}


def test_warm_up_with_rejected_demonstrations_raises_usage_error(open_replay):
    replay = open_replay(marked("failed", 0.1, success=False, demo=True))
    learner = learner_of(make(), replay)
    with pytest.raises(UsageError, match=r"the algorithm rejected every demonstration.*warmup_updates=0"):
        learner.warm_up(5)


def test_waits_for_the_first_success(open_replay):
    replay = open_replay(marked("failed", 0.1, success=False))
    learner = learner_of(make(), replay)
    assert learner.step(env_steps=6) == {}
    replay.add(*marked("succeeded", 0.2))
    assert learner.step(env_steps=12)["accepted_share"] == 0.5
    assert learner.num_online_updates == 12


def test_demo_share_of_each_batch(open_replay):
    replay = open_replay(marked("demo", 0.6, demo=True), marked("succeeded", 0.2))
    algorithm = make(demo_share=0.25)
    given = spy_on(algorithm._policy)
    learner_of(algorithm, replay).step(env_steps=1)
    assert [round(float(m), 1) for m in given[0][0][:, 0, 0]] == [0.6] * 2 + [0.2] * 6


# ---- what is imitated


def test_imitates_achieved_motion_and_gripper_commands():
    """A gripper that holds an object is less closed than commanded: imitating the achieved opening would release it."""
    for targets, reached in (("achieved", 0.5), ("executed", 1.0)):
        algorithm = make(make_flow(GRIPPING), imitated_actions=targets)
        given, batch = spy_on(algorithm._policy), batch_of(algorithm, GRIPPING)
        algorithm.update(batch)
        ((actions, mask),) = given
        torch.testing.assert_close(actions[..., :2], reached * batch["action"][..., :2])
        torch.testing.assert_close(actions[..., 2], batch["action"][..., 2])
        assert mask.all()


@pytest.mark.parametrize("junk", [9.0, np.nan])
def test_padding_and_unknown_actions_are_ignored(junk):
    weights = []
    for filling in (0.0, junk):
        algorithm = make()
        batch = batch_of(algorithm)
        batch["action/mask"][:4, 2:] = False
        batch["achieved"][:4, 2:] = filling
        batch["action"][:4, 2:] = filling
        metrics = [algorithm.update(batch) for _ in range(3)]
        assert all(np.isfinite(m["imitation_loss"]) for m in metrics)
        weights.append(algorithm.policy_weights()["actor"])
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    algorithm = make()
    given, batch = spy_on(algorithm._policy), batch_of(algorithm)
    batch["achieved"][3] = torch.nan  # a robot without this measurement
    algorithm.update(batch)
    assert given[0][1].all(dim=1).tolist() == [True] * 3 + [False] + [True] * 4


def test_chunks_without_motion_are_left_out():
    """Joints that sway by s have a standard deviation of s."""
    algorithm = make()
    given, batch = spy_on(algorithm._policy), batch_of(algorithm)
    sway = torch.tensor([1.0, -1.0, 1.0, -1.0])
    for row, (first, second) in enumerate([(0.0, 0.0), (9e-4, 0.0), (11e-4, 0.0), (0.0, 11e-4), (9e-4, 9e-4)]):
        batch["achieved"][row, :, 0] = 0.3 + first * sway
        batch["achieved"][row, :, 1] = -0.2 + second * sway
    batch["achieved"][5] = 0.1  # still, and the episode ended in it
    batch["discount"][5] = 0.0
    batch["achieved"][6, :2] = 0.1  # still up to the end of the recording, which was a timeout
    batch["action/mask"][6, 2:] = False
    batch["action/mask"][7, 1:] = False  # one state shows no motion
    metrics = algorithm.update(batch)
    assert given[0][1].any(dim=1).tolist() == [False, False, True, True, False, True, False, True]
    assert metrics["still_share"] == 4 / 8


def test_slow_motion_counts_as_motion():
    """Equal deltas of d lead through states d, 2 d, 3 d, 4 d, whose standard deviation is sqrt(1.25) d."""
    algorithm = make(make_flow(CARTESIAN))
    given, batch = spy_on(algorithm._policy), batch_of(algorithm, CARTESIAN)
    batch["achieved"][:2] = 0.0
    batch["achieved"][0, :, 2] = 0.95e-3
    batch["achieved"][1, :, 2] = 0.85e-3
    algorithm.update(batch)
    assert given[0][1].any(dim=1).tolist() == [True, False] + [True] * 6


def test_constant_base_velocity_counts_as_motion_and_constant_joint_target_does_not():
    robot = FakeMobileArm(FakeMobileArmConfig()).spec  # shoulder, elbow, gripper, vx, vy
    algorithm = make(make_flow(robot))
    given, batch = spy_on(algorithm._policy), batch_of(algorithm, robot)
    batch["achieved"][:2] = 0.0
    batch["achieved"][0, :, 3] = 0.01
    batch["achieved"][1, :, 0] = 0.01
    algorithm.update(batch)
    assert given[0][1].flatten(1).any(dim=1).tolist() == [True, False] + [True] * 6  # its mask is by axis


def test_closing_gripper_counts_as_motion():
    algorithm = make(make_flow(GRIPPING))
    given, batch = spy_on(algorithm._policy), batch_of(algorithm, GRIPPING)
    batch["achieved"][:2] = 0.0
    batch["achieved"][0, :, 2] = torch.tensor([0.8, 0.6, 0.5, 0.5])  # as measured
    batch["action"][:2, :, 2] = 0.0  # a constant command
    algorithm.update(batch)
    assert given[0][1].any(dim=1).tolist() == [True, False] + [True] * 6


def test_executed_actions_without_motion_filter_need_no_measurement(robot):
    algorithm = make(make_flow(robot), imitated_actions="executed", min_motion_std=0.0)
    assert not algorithm.sample_request.achieved
    check_algorithm(lambda: make(make_flow(robot), imitated_actions="executed", min_motion_std=0.0), robot=robot)
    with pytest.raises(UsageError, match="robot 'arm' does not measure"):
        batch_arrays(make(make_flow(robot)).sample_request, robot)


def test_batch_without_valid_actions_changes_nothing():
    algorithm = make()
    batch = batch_of(algorithm)
    batch["achieved"][:] = 0.0
    before = algorithm.policy_weights()["actor"]
    metrics = algorithm.update(batch)
    assert metrics == {"threshold": 0.5, "still_share": 1.0, "correction_share": 0.0}
    assert all(np.array_equal(value, before[name]) for name, value in algorithm.policy_weights()["actor"].items())


# ---- how much it counts


def test_corrections_have_a_larger_weight_than_demonstrations():
    """Single actions of a Gaussian, whose loss is deterministic: (w n_h L_h + n_p L_p) / (w n_h + n_p)."""
    policy = GaussianMLP(GaussianMLPConfig(hidden=(16,)), robot=ARM, seed=0)
    algorithm = make(policy, demo_share=0.25, correction_weight=5.0)
    batch = batch_of(algorithm)
    batch["human"][:] = torch.tensor([1, 1, 0, 1, 0, 1, 0, 1])  # the first two rows are demonstrations
    features, targets = policy.features({"joint_pos": batch["observation/joint_pos"]}), batch["achieved"]
    corrected = torch.tensor([3, 5, 7])
    others = torch.tensor([0, 1, 2, 4, 6])
    with torch.no_grad():
        helped, alone = (policy.imitation_loss(features[r], targets[r]).item() for r in (corrected, others))
    metrics = algorithm.update(batch)
    assert metrics["imitation_loss"] == pytest.approx((5 * 3 * helped + 5 * alone) / (5 * 3 + 5), rel=1e-5)
    assert metrics["correction_share"] == 3 / 8


def test_weight_depends_on_the_first_step_and_the_number_of_actions():
    algorithm = make(correction_weight=3.0)
    given, batch = spy_on(algorithm._policy), batch_of(algorithm)
    batch["human"][:3, 0] = True  # corrections, handed back after one step
    batch["human"][3, 1:] = True  # taken over in the midst of a chunk of the policy
    batch["action/mask"][0, 1:] = False
    algorithm.update(batch)
    (helped, helped_mask), (alone, alone_mask) = given
    assert (len(helped), len(alone)) == (3, 5)
    assert (int(helped_mask.sum()), int(alone_mask.sum())) == (1 + 4 + 4, 20)

    losses = iter((torch.tensor(1.0, requires_grad=True), torch.tensor(0.0, requires_grad=True)))
    algorithm._policy.imitation_loss = lambda *_, **__: next(losses)
    assert algorithm.update(batch)["imitation_loss"] == pytest.approx(3 * 9 / (3 * 9 + 20))


def test_gradients_are_clipped_to_one():
    algorithm = make(max_grad_norm=1e-3)
    algorithm.update(batch_of(algorithm))
    norms = torch.stack([p.grad.norm() for p in algorithm._parameters])
    assert norms.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert HiORSConfig().max_grad_norm == 1.0
    assert HiORSConfig().lr == 2.5e-5


# ---- the contract


@pytest.mark.parametrize("config", [{}, {"horizon": 1}, {"history": {"joint_pos": 3}}, {"prompt_features": 4}])
def test_passes_check_algorithm(config):
    check_algorithm(
        lambda: make(make_flow(**config), demo_share=0.5, return_thresholds=(0.5, 0.6), updates_per_round=3),
        robot=ARM,
    )


def test_resumed_learner_is_identical_and_keeps_its_round(open_replay):
    replay = open_replay(marked("a", 0.2, human=(2, 3)), marked("b", 0.4), marked("demo", 0.6, demo=True))

    def fresh():
        return learner_of(make(demo_share=0.25, return_thresholds=(0.5, 0.9), updates_per_round=5), replay)

    learner = fresh()
    learner.step(env_steps=7)
    state = {name: np.array(value) for name, value in learner.state_dict().items()}
    expected = learner.step(env_steps=15)
    assert expected["threshold"] == pytest.approx(0.9)
    resumed = fresh()
    resumed.load_state_dict(state)
    assert resumed.step(env_steps=15) == expected
    assert all(
        np.array_equal(value, resumed.policy_weights()["actor"][name])
        for name, value in learner.policy_weights()["actor"].items()
    )


def test_state_of_another_policy_raises_checkpoint_error():
    with pytest.raises(CheckpointError, match="does not fit algorithm 'hi_ors'"):
        make().load_state_dict(make(make_flow(horizon=8)).state_dict())


# ---- does it learn?


def learn_online(policy, algorithm, replay, *, num_rounds=6, num_episodes=24, num_updates=60):
    """Alternate online episodes of one chunk with updates; moving right succeeds. Return the final success rate."""
    learner = Learner(algorithm=algorithm, replay=replay, robot=ARM, rng=np.random.default_rng(1))
    rng = np.random.default_rng(2)
    for number in range(num_rounds):
        starts = rng.uniform(-1, 1, (num_episodes, 2))
        for index, (start, actions) in enumerate(zip(starts, chunks_of(policy, starts, seed=number), strict=True)):
            success = bool(actions[:, 0].mean() > 0)
            replay.add(*make_episode(f"{number}-{index}", actions, start=start, success=success))
        learner.step(env_steps=(number + 1) * num_updates)
    return float((chunks_of(policy, rng.uniform(-1, 1, (300, 2)), seed=99)[..., 0].mean(1) > 0).mean())


@pytest.mark.extended
def test_accepted_episodes_improve_the_policy_and_cloning_all_does_not(open_replay):
    """Demonstrations go both ways and only one way succeeds, so the cloned policy succeeds half of the time."""
    rng = np.random.default_rng(0)
    shown = []
    for n in range(30):
        way = np.stack((np.full(4, 0.5 if n % 2 else -0.5), np.linspace(0, 0.4, 4)), axis=1)
        shown.append(make_episode(f"demo-{n}", way, start=rng.uniform(-1, 1, 2), demo=True))
    cloned = make_flow()
    learner_of(Imitation(ImitationConfig(batch_size=32), policy=cloned), open_replay(*shown)).warm_up(300)
    states = rng.uniform(-1, 1, (300, 2))
    assert 0.3 < (chunks_of(cloned, states)[..., 0].mean(1) > 0).mean() < 0.7

    rates = {}
    for kind, settings in (
        (HiORS, HiORSConfig(batch_size=32, demo_share=0.0, lr=1e-3)),
        (ImitateEverything, ImitationConfig(batch_size=32, lr=1e-3)),
    ):
        policy = make_flow()
        for name, module in policy.components.items():
            module.load_state_dict(cloned.components[name].state_dict())
        rates[kind] = learn_online(policy, kind(settings, policy=policy), open_replay())
    assert rates[HiORS] > 0.95
    assert rates[ImitateEverything] < 0.75
