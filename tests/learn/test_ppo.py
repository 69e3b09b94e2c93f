"""PPO: loss, gradient and bootstrap values against hand-computed numbers; metrics and checkpoints."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.ppo import PPO, PPOConfig, RolloutRows, executed_density, ppo_loss
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.flows.valued_flow import ValuedFlow, ValuedFlowConfig
from dovetail.testing import check_on_policy_algorithm
from support.small_algorithms import NUM_ENVS, NUM_STEPS, rollout, same_arrays

N, T = NUM_ENVS, NUM_STEPS


def make(robot, *, seed=0, policy_seed=0, **config):
    policy = ActorCritic(ActorCriticConfig(hidden=(8,), value_hidden=(8,)), robot=robot, seed=policy_seed)
    settings = {"num_envs": N, "rollout_steps": T, "batch_size": 8, "num_epochs": 2, **config}
    return PPO(PPOConfig(**settings), policy=policy, seed=seed), policy


def rows(**values):
    names = ("log_prob_old", "weight", "advantage", "returns")
    return RolloutRows(**{name: torch.tensor(values[name]) for name in names})


def weights_of(algorithm):
    return {f"{c}/{n}": v for c, arrays in algorithm.policy_weights().items() for n, v in arrays.items()}


# ---- the loss


def test_loss_matches_hand_computed_numbers():
    config = PPOConfig()
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    loss, facts = ppo_loss(
        config,
        rows(
            log_prob_old=[0.0] * 5,
            weight=[1.0] * 5,
            advantage=[1.0, 1.0, -1.0, -1.0, 2.0],
            returns=[1.0, 0.0, 0.0, 0.0, 0.0],
        ),
        log_prob=ratios.log(),
        entropy=torch.full((5,), 3.0),
        value=torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0]),
    )
    # gains are clipped at ratios 1.2 and 0.8; losses count in full
    gains = [1.2, 0.5, -1.5, -0.8, 2.2]
    assert facts["policy_loss"].item() == pytest.approx(-sum(gains) / 5)
    assert facts["value_loss"].item() == pytest.approx((1.0 + 4.0) / 5)
    assert facts["entropy"].item() == 3.0
    assert loss.item() == pytest.approx(-sum(gains) / 5 + 0.5 * 1.0 - 0.01 * 3.0)
    assert facts["clip_fraction"].item() == pytest.approx(4 / 5)
    kl = [ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 1.5, 0.5, 1.1)]
    assert facts["kl"].item() == pytest.approx(sum(kl) / 5, rel=1e-5)


def test_stale_step_is_weighted_and_clipped_around_the_old_policy():
    """The clipped ratio is relative to the policy at the start of the update, not to the one that collected the rollout."""
    values = {"log_prob_old": [0.0, 0.0], "advantage": [1.0, 1.0], "returns": [0.0, 0.0]}
    log_prob = torch.tensor([1.1, 1.5]).log()
    zero = torch.zeros(2)
    _, facts = ppo_loss(
        PPOConfig(), rows(weight=[3.0, 0.5], **values), log_prob=log_prob, entropy=zero, value=zero
    )
    assert facts["policy_loss"].item() == pytest.approx(-(3.0 * 1.1 + 0.5 * 1.2) / 2)


def test_gradient_matches_finite_differences(robot):
    policy = make(robot)[1]
    modules = list(policy.components.values())
    for module in modules:
        module.double()
    batch = rollout(make(robot)[1])
    observations = {"joint_pos": batch["observation/joint_pos"][:, :-1].flatten(0, 1).double()}
    drawn = batch["action"].flatten(0, 1).double()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        proximal, _, _ = policy.evaluate_actions(policy.features(observations), drawn)
        proximal = proximal + torch.from_numpy(rng.normal(0, 0.15, N * T))  # ratios on both sides of the clip
    data = RolloutRows(
        log_prob_old=proximal,
        weight=torch.from_numpy(rng.uniform(0.5, 2.0, N * T)),
        advantage=torch.from_numpy(rng.normal(size=N * T)),
        returns=torch.from_numpy(rng.normal(size=N * T)),
    )

    def loss():
        log_prob, entropy, value = policy.evaluate_actions(policy.features(observations), drawn)
        return ppo_loss(PPOConfig(), data, log_prob=log_prob, entropy=entropy, value=value)[0]

    parameters = [p for module in modules for p in module.parameters()]
    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), max(1, len(flat) // 5)):
            kept = flat[i].item()
            with torch.no_grad():
                flat[i] = kept + 1e-6
                above = loss().item()
                flat[i] = kept - 1e-6
                below = loss().item()
                flat[i] = kept
            assert gradient.view(-1)[i].item() == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-7)
    assert all(gradient.abs().max() > 0 for gradient in gradients)


# ---- advantages and weights


def evaluate(algorithm, batch):
    observations = {"joint_pos": batch["observation/joint_pos"][:, :-1].flatten(0, 1)}
    return algorithm._evaluate_rollout(batch, observations, batch["action"].flatten(0, 1))


def test_bootstrap_values_at_ends_and_truncations(robot):
    """Regression: no bootstrap at truncation, or from the next episode's first observation in place of the true last one."""
    algorithm, policy = make(robot, gae_lambda=0.0, gamma=0.9)
    batch = rollout(policy)
    data, _ = evaluate(algorithm, batch)

    def value(observation):
        with torch.no_grad():
            return policy.value(policy.features({"joint_pos": observation[None]})).item()

    returns, reward, observations = data.returns.view(N, T), batch["reward"], batch["observation/joint_pos"]
    final = batch["final/joint_pos"][0]
    assert returns[0, 2].item() == pytest.approx(reward[0, 2].item())  # terminal: no bootstrap
    assert returns[1, 4].item() == pytest.approx(reward[1, 4].item() + 0.9 * value(final), rel=1e-5)
    assert abs(value(final) - value(observations[1, 5])) > 1e-3
    assert returns[2, T - 1].item() == pytest.approx(
        reward[2, T - 1].item() + 0.9 * value(observations[2, T]), rel=1e-5
    )


def test_advantages_use_the_current_critic(robot):
    algorithm, policy = make(robot)
    batch = rollout(policy)
    before, _ = evaluate(algorithm, batch)
    with torch.no_grad():
        for parameter in policy.components["critic"].parameters():
            parameter.add_(0.3)
    after, _ = evaluate(algorithm, batch)
    assert not torch.allclose(before.returns, after.returns)
    torch.testing.assert_close(before.weight, torch.ones(N * T))


def test_advantages_are_normalized(robot):
    algorithm, policy = make(robot)
    data, _ = evaluate(algorithm, rollout(policy))
    assert data.advantage.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert data.advantage.std(correction=0).item() == pytest.approx(1.0, rel=1e-4)


def test_importance_weights_are_ratios_to_the_collecting_policy(robot):
    algorithm, policy = make(robot, max_importance_weight=2.0)
    batch = rollout(policy)
    batch["log_prob"] = batch["log_prob"] + torch.tensor([[math.log(2.0)], [math.log(0.8)], [math.log(0.1)]])
    data, facts = evaluate(algorithm, batch)
    expected = torch.tensor([0.5, 1.25, 2.0])[:, None].expand(N, T).flatten()  # 10 is clipped
    torch.testing.assert_close(data.weight, expected, rtol=1e-4, atol=1e-4)
    kl = [w - 1 - math.log(w) for w in (0.5, 1.25, 10.0)]
    assert facts["behaviour_kl"] == pytest.approx(sum(kl) / 3, rel=1e-3)


# ---- chunks


def test_density_counts_executed_actions_only():
    log_prob, num_executed = torch.tensor([[1.0, 3.0, 100.0], [2.0, 100.0, 100.0]]), torch.tensor([2, 1])
    joint = executed_density(log_prob, num_executed, num_axes=2, how="joint")
    assert joint.tolist() == [4.0, 2.0]
    mean = executed_density(log_prob, num_executed, num_axes=2, how="mean")
    assert mean.tolist() == [1.0, 1.0]  # 4 / (2 actions * 2 axes), 2 / (1 * 2)


def make_chunks(robot, **config):
    small = {"horizon": 3, "hidden": 8, "num_layers": 1, "value_hidden": (8,)}
    policy = ValuedFlow(ValuedFlowConfig(**small), robot=robot)
    settings = {
        "num_envs": N,
        "rollout_steps": T,
        "batch_size": N * T,
        "num_epochs": 1,
        "normalize": False,
        **config,
    }
    return PPO(PPOConfig(**settings), policy=policy), policy


def chunk_rollout(policy, robot, *, num_executed=3):
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(N, T + 1, 3)).astype(np.float32)
    chunk = policy.act({"joint_pos": observations[:, :-1].reshape(N * T, 3)}, ActContext(seed=1))
    batch = rollout(make(robot)[1])  # the rest is the same
    return {
        **batch,
        "observation/joint_pos": torch.from_numpy(observations),
        "action": torch.from_numpy(chunk.extras["drawn"]).view(N, T, -1),
        "log_prob": torch.from_numpy(chunk.extras["log_prob"]).view(N, T, 3),
        "num_executed": torch.full((N, T), num_executed),
    }


def test_value_after_a_chunk_is_discounted_by_its_duration(robot):
    algorithm, policy = make_chunks(robot, gae_lambda=0.0, gamma=0.9)
    batch = chunk_rollout(policy, robot)
    batch["num_executed"][1, 4] = 2  # the episode was truncated inside the chunk
    data, _ = evaluate(algorithm, batch)

    def value(observation):
        with torch.no_grad():
            return policy.value(policy.features({"joint_pos": observation[None]})).item()

    returns, reward, observations = data.returns.view(N, T), batch["reward"], batch["observation/joint_pos"]
    assert returns[0, 2].item() == pytest.approx(reward[0, 2].item())  # terminal
    assert returns[2, 3].item() == pytest.approx(
        reward[2, 3].item() + 0.9**3 * value(observations[2, 4]), rel=1e-4
    )
    final = batch["final/joint_pos"][0]
    assert returns[1, 4].item() == pytest.approx(reward[1, 4].item() + 0.9**2 * value(final), rel=1e-4)


@pytest.mark.parametrize("density", ["mean", "joint"])
def test_first_ratio_of_chunks_is_1_and_the_flow_learns(robot, density):
    algorithm, policy = make_chunks(robot, chunk_density=density)
    before = weights_of(algorithm)
    metrics = algorithm.update(chunk_rollout(policy, robot))
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["behaviour_kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["actor_grad_norm"] > 0
    after = weights_of(algorithm)
    assert any(not np.array_equal(before[name], after[name]) for name in before if name.startswith("actor/"))


def test_kl_to_the_start_keeps_the_policy_near_it(robot):
    moved = []
    for coef in (0.0, 100.0):
        algorithm, policy = make_chunks(robot, start_kl_coef=coef, num_epochs=20, lr=1e-2, chunk_density="joint")
        before = weights_of(algorithm)
        batch = chunk_rollout(policy, robot)
        metrics = algorithm.update(batch)
        after = weights_of(algorithm)
        moved.append(sum(np.abs(after[name] - before[name]).sum() for name in before if name.startswith("actor/")))
    assert moved[1] < moved[0]
    assert metrics["start_kl"] > 0
    state = algorithm.state_dict()
    resumed, _ = make_chunks(robot, start_kl_coef=100.0, num_epochs=20, lr=1e-2, chunk_density="joint")
    resumed.load_state_dict(state)
    assert same_arrays(resumed.state_dict(), state)
    for one in (algorithm, resumed):  # the start stays the first one
        one.update({**batch, "version": torch.ones(N, T, dtype=torch.int64)})
    assert same_arrays(weights_of(resumed), weights_of(algorithm))


# ---- updates


@pytest.mark.parametrize("build", [make, make_chunks])
def test_ppo_keeps_the_on_policy_contract(robot, build):
    config = PPOConfig(num_envs=N, rollout_steps=T, batch_size=8, num_epochs=2, normalize=False)
    check_on_policy_algorithm(lambda policy: PPO(config, policy=policy), lambda: build(robot)[1])


def test_suite_reports_a_wrong_resume(robot):
    class Forgetful(PPO):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            self._lr *= 2.0

    config = PPOConfig(num_envs=N, rollout_steps=T, batch_size=8, normalize=False)
    with pytest.raises(AssertionError, match="the same rollouts gave other weights"):
        check_on_policy_algorithm(lambda policy: Forgetful(config, policy=policy), lambda: make(robot)[1])


def test_is_an_on_policy_algorithm(robot):
    algorithm, _ = make(robot, num_envs=5, asynchronous=True, max_staleness=2)
    assert isinstance(algorithm, OnPolicyAlgorithm)
    assert (algorithm.rollout_settings.num_envs, algorithm.rollout_settings.max_staleness) == (5, 2)
    assert make(robot)[0].rollout_settings.max_staleness == 0  # rollouts are synchronous


def test_first_ratio_on_a_fresh_rollout_is_1(robot):
    algorithm, policy = make(robot, batch_size=N * T, num_epochs=1, normalize=False)
    metrics = algorithm.update(rollout(policy))
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["behaviour_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["staleness_max"] == 0.0


def test_staleness_is_reported_and_limited(robot):
    """Regression: staleness was neither recorded nor limited."""
    algorithm, policy = make(robot, asynchronous=True, max_staleness=1)
    algorithm.update(rollout(policy))
    metrics = algorithm.update(rollout(policy, version=0))
    assert metrics["staleness"] == metrics["staleness_max"] == 1.0
    with pytest.raises(FailureError, match="2 versions old, but at most 1"):
        algorithm.update(rollout(policy, version=0))


def test_rewarded_actions_become_more_likely(robot):
    algorithm, policy = make(robot, lr=3e-3, num_epochs=5, gamma=0.5)
    for version in range(25):
        batch = rollout(policy, seed=version, version=version, ends=[(n, t) for n in range(N) for t in range(T)])
        batch["reward"] = -(batch["action"] - 0.5).square().sum(-1)
        metrics = algorithm.update(batch)
    with torch.no_grad():
        mean = policy.components["actor"](policy.features({"joint_pos": torch.randn(64, 3)}))
    assert (mean - 0.5).abs().mean() < 0.25  # from 0
    assert all(math.isfinite(value) for value in metrics.values())


def test_target_kl_ends_the_epochs(robot):
    assert make(robot, num_epochs=10, lr=0.1)[0].update(rollout(make(robot)[1]))["epochs"] == 10
    algorithm, policy = make(robot, num_epochs=10, lr=0.1, target_kl=0.01)
    assert algorithm.update(rollout(policy))["epochs"] < 10


def test_adapt_lr_follows_the_kl(robot):
    settings = {"lr": 1e-3, "value_lr": 5e-3, "std_lr": 2e-3, "target_kl": 0.01, "adapt_lr": True}
    algorithm, policy = make(robot, **settings)
    for kl, lr in ((0.016, 1e-3 / 1.2), (0.012, 1e-3 / 1.2), (0.007, 1e-3 / 1.2), (0.006, 1e-3), (0.0, 1.2e-3)):
        algorithm._adapt_lr(kl)
        assert algorithm._lr == pytest.approx(lr)
    for _ in range(100):
        algorithm._adapt_lr(1.0)
    assert algorithm._lr == pytest.approx(1e-4)  # at least a tenth of the configured rate
    state = algorithm.state_dict()
    resumed, _ = make(robot, **settings)
    resumed.load_state_dict(state)
    rates = [group["lr"] for group in resumed._optimizer.param_groups]
    assert rates == pytest.approx([1e-4, 2e-3, 5e-3])  # mean, std and critic
    assert len(resumed._optimizer.param_groups[1]["params"]) == 1
    assert resumed.update(rollout(policy))["lr"] == pytest.approx(resumed._lr)
    with pytest.raises(UsageError, match=r"Set algorithm\.target_kl"):
        make(robot, adapt_lr=True)


def test_actor_and_critic_are_clipped_separately(robot):
    """Regression: a large critic gradient left the actor no step. Returns of 1000 must not freeze the actor."""
    steps = []
    for scale in (1.0, 1000.0):
        algorithm, policy = make(robot, num_epochs=1, batch_size=N * T, value_lr=1e-9, normalize=False)
        batch = rollout(policy)
        before = weights_of(algorithm)["actor/log_std"].copy()
        ends = [(n, t) for n in range(N) for t in range(T)]
        batch = rollout(policy, ends=ends, cuts=())
        batch["reward"] = scale * (batch["reward"] - batch["reward"].mean())
        metrics = algorithm.update(batch)
        steps.append(weights_of(algorithm)["actor/log_std"] - before)
    np.testing.assert_allclose(steps[0], steps[1], rtol=0.2)
    assert metrics["critic_grad_norm"] > 100 * metrics["actor_grad_norm"]


def test_normalizer_uses_all_rollouts(robot):
    algorithm, policy = make(robot)
    batches = [rollout(policy, seed=seed, version=seed) for seed in range(2)]
    for batch in batches:
        batch["observation/joint_pos"] = 3.0 + 2.0 * batch["observation/joint_pos"]
        algorithm.update(batch)
    rows = torch.cat([batch["observation/joint_pos"][:, :-1].flatten(0, 1) for batch in batches]).numpy()
    normalizer = policy.weights()["normalizer"]
    np.testing.assert_allclose(normalizer["mean/joint_pos"], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer["std/joint_pos"], rows.std(0), rtol=1e-5)
    untouched, policy = make(robot, normalize=False)
    untouched.update(rollout(policy))
    assert (policy.weights()["normalizer"]["std/joint_pos"] == 1).all()


def test_update_does_not_change_the_rollout(robot):
    algorithm, policy = make(robot)
    batch = rollout(policy)
    before = {name: values.clone() for name, values in batch.items()}
    weights, state = weights_of(algorithm), algorithm.state_dict()
    kept, saved = ({name: value.copy() for name, value in some.items()} for some in (weights, state))
    algorithm.update(batch)
    assert all(torch.equal(before[name], batch[name]) for name in before)
    assert same_arrays(kept, weights)
    assert same_arrays(saved, state)
    assert not same_arrays(weights, weights_of(algorithm))


def test_actor_after_delays_the_actor(robot):
    def run_updates(resumed_after):
        algorithm, policy = make(robot, actor_after=1, normalize=False, target_kl=0.01, adapt_lr=True)
        found, before = [], weights_of(algorithm)
        for number in range(2):
            algorithm.update(rollout(policy, seed=number, version=number))
            after = weights_of(algorithm)
            found.append({name for name in after if not np.array_equal(after[name], before[name])})
            before = after
            if number == resumed_after:  # between two: the actor's optimizer has no state yet
                state = algorithm.state_dict()
                assert float(state["lr"]) == PPOConfig().lr  # the actor did not move, so the rate stays
                algorithm, policy = make(
                    robot, actor_after=1, normalize=False, target_kl=0.01, adapt_lr=True, seed=9
                )
                algorithm.load_state_dict(state)
        return found, before

    (first, second), at_once = run_updates(resumed_after=None)
    assert {name.split("/")[0] for name in first} == {"critic"}
    assert {name.split("/")[0] for name in second} == {"actor", "critic"}
    assert any("log_std" in name for name in second)
    assert same_arrays(at_once, run_updates(resumed_after=0)[1])


def test_resumed_updates_are_identical(robot):
    """Regression: checkpoints without optimizer, random generator or counters."""
    algorithm, policy = make(robot)
    batches = [rollout(policy, seed=seed, version=seed) for seed in range(4)]
    for batch in batches[:2]:
        algorithm.update(batch)
    state = algorithm.state_dict()
    resumed, _ = make(robot, seed=9, policy_seed=9)
    resumed.load_state_dict(state)
    for batch in batches[2:]:
        assert algorithm.update(batch) == resumed.update(batch)
    assert same_arrays(weights_of(algorithm), weights_of(resumed))
    assert same_arrays(algorithm.state_dict(), resumed.state_dict())


def test_state_that_does_not_fit_raises_checkpoint_error(robot):
    algorithm, _ = make(robot)
    state = dict(algorithm.state_dict())
    del state["moments/joint_pos"]
    with pytest.raises(CheckpointError, match="does not fit algorithm 'ppo'"):
        algorithm.load_state_dict(state)


def test_policy_without_values_raises_usage_error(policy):
    with pytest.raises(UsageError, match=r"not 'gaussian_mlp'\. Use policy 'actor_critic'"):
        PPO(PPOConfig(), policy=policy)
