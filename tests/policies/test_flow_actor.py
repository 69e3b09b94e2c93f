"""The actor of SAC-Flow: paths with noise against closed forms, their density, and its gradients."""

import math

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.flow_actor import FlowActor, FlowActorConfig
from dovetail.policies.trainable import TrainablePolicy
from dovetail.policies.velocity import noisy_path
from dovetail.testing import check_policy
from support.toy_arm import ROBOT, STILL, batch

KINDS = ("gated", "transformer")
M, S = 0.7, 0.4  # where a Gaussian flow ends


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def make(kind="gated", seed=3, **config):
    return FlowActor(FlowActorConfig(**({"velocity": kind, "hidden": 16} | config)), robot=ROBOT, seed=seed)


def seen(policy, num=4, seed=0):
    return policy.features({key: torch.from_numpy(value) for key, value in batch(num, seed).items()})


def in_doubles(policy):
    """With some noise of its own everywhere, as after learning."""
    for module in policy.components.values():
        module.double()
        for parameter in module.parameters():
            with torch.no_grad():
                parameter += 0.1 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
    return policy


# ---- a policy


@pytest.mark.parametrize("config", [{}, {"history": {"force": 3}}, {"num_flow_steps": 1}, {"inputs": ("force",)}])
def test_it_keeps_the_contract(kind, config):
    donor = make(kind, seed=4, **config)
    snapshot = WeightSnapshot(version=9, components=donor.weights(), hashes={})
    check_policy(lambda: make(kind, **config), snapshot=snapshot)
    assert isinstance(donor, TrainablePolicy)


def test_it_is_a_policy_by_name():
    assert resolve("policy", "flow_actor") is FlowActor
    assert FlowActorConfig().num_flow_steps == 4


@pytest.mark.parametrize("sigma", [(0.0, 1.0), (0.5, 0.5), (1.0, 0.1)])
def test_noise_without_range_is_refused(sigma):
    with pytest.raises(ValueError, match="the smaller one first"):
        FlowActorConfig(sigma=sigma)


def test_a_calm_action_is_the_middle_of_the_paths(kind):
    """Drift and all: the flow without it ends elsewhere, where nobody has learned anything."""
    policy = make(kind, sigma=(0.5, 0.9))
    features, x = seen(policy), torch.zeros(4, 2)
    sigma = policy.sigma(features)
    for t in (0.0, 0.25, 0.5, 0.75):
        v = policy._velocity(x, features, torch.full((4,), t))
        x = x + (v + sigma**2 / 2 * (t * v - x) / (1 - t)) / 4
    low, high = ROBOT.action.bounds
    expected = low + (np.tanh(x.detach().numpy()) + 1) / 2 * (high - low)
    np.testing.assert_allclose(policy.act(batch(), STILL).actions[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_each_row_has_noise_of_its_own_at_every_step(kind):
    """Trap: one noise for the whole batch."""
    policy = make(kind)
    same = seen(policy)[:1].expand(8, -1)
    actions, log_prob = policy.sample(same, generator=torch.Generator().manual_seed(0))
    assert len(np.unique(actions.detach().numpy(), axis=0)) == 8
    assert len(np.unique(log_prob.detach().numpy())) == 8
    given = []

    def velocity(x, t):
        given.append(x)
        return torch.zeros_like(x)

    noise = torch.randn(4, 8, 2)
    path, _ = noisy_path(velocity, torch.zeros(8, 2), sigma=torch.full((8, 2), 0.5), noise=noise)
    for before, after in zip(given, path[1:], strict=True):
        assert len(np.unique((after - before).numpy(), axis=0)) == 8


# ---- the path, where everything is known: x_t = (1 - t) noise + t a, a from N(M, S^2)


def variance(t):
    return (1 - t) ** 2 + (t * S) ** 2


def gaussian_velocity(x, t):
    return M + (t * S * S - (1 - t)) / variance(t) * (x - t * M)


def exact_moments(num_steps, sigma):
    """Of the Euler chain: everything in it is linear, so mean and variance go from step to step."""
    mean, var, dt = 0.0, 1.0, 1.0 / num_steps
    for step in range(num_steps):
        t = step * dt
        slope = (t * S * S - (1 - t)) / variance(t) - 0.5 * sigma**2 / variance(t)  # score: -(x - t M) / variance
        mean = mean + dt * (M + slope * (mean - t * M))
        var = (1 + dt * slope) ** 2 * var + sigma**2 * dt
    return mean, var


def paths(num_steps, sigma, num=200_000):
    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(num, 1, generator=generator), torch.randn(num_steps, num, 1, generator=generator)
    return noisy_path(gaussian_velocity, x0, sigma=torch.full((num, 1), sigma), noise=noise)[0][-1]


@pytest.mark.parametrize(("num_steps", "sigma"), [(4, 0.2), (4, 0.7), (16, 0.5)])
def test_moments_of_the_path_are_those_worked_out_for_it(num_steps, sigma):
    mean, var = exact_moments(num_steps, sigma)
    ends = paths(num_steps, sigma)
    assert ends.mean().item() == pytest.approx(mean, abs=0.005)
    assert ends.var().item() == pytest.approx(var, rel=0.015)


@pytest.mark.parametrize("sigma", [0.0001, 0.3, 1.0])
def test_noise_on_the_way_leaves_the_marginals_as_they_are(sigma):
    """Trap: without the drift's correction the variance would grow by sigma^2 and more."""
    ends = paths(100, sigma, num=50_000)
    plain = torch.randn(50_000, 1, generator=torch.Generator().manual_seed(1))
    for step in range(100):
        plain = plain + gaussian_velocity(plain, step / 100) / 100
    assert ends.mean().item() == pytest.approx(M, abs=0.02)
    assert ends.std().item() == pytest.approx(S, abs=0.015)
    assert plain.mean().item() == pytest.approx(M, abs=0.02)
    assert plain.std().item() == pytest.approx(ends.std().item(), abs=0.02)


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_at_every_time_on_the_way(sigma):
    """Not only at the end: the score is the one of x_t."""
    num_steps, met = 64, []

    def velocity(x, t):
        met.append((t, x.mean().item(), x.var().item()))
        return gaussian_velocity(x, t)

    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(30_000, 1, generator=generator), torch.randn(num_steps, 30_000, 1, generator=generator)
    noisy_path(velocity, x0, sigma=torch.full((30_000, 1), sigma), noise=noise)
    for t, mean, var in met:
        assert mean == pytest.approx(t * M, abs=0.03)
        assert var == pytest.approx(variance(t), rel=0.08, abs=0.01)


def test_four_steps_of_little_noise_are_near_the_four_without():
    """What a policy really does: at K = 4 both are off, and by as much."""
    for sigma in (0.1, 0.3):
        mean, var = exact_moments(4, sigma)
        calm_mean, calm_var = exact_moments(4, 0.0)
        assert mean == pytest.approx(calm_mean, abs=0.02)
        assert math.sqrt(var) == pytest.approx(math.sqrt(calm_var), abs=0.06)


def test_no_step_divides_by_what_time_is_left_of_none():
    for num_steps in (1, 4, 7):
        path, log_density = noisy_path(
            gaussian_velocity,
            torch.zeros(3, 1),
            sigma=torch.ones(3, 1),
            noise=torch.ones(num_steps, 3, 1),
        )
        assert path[-1].isfinite().all() and log_density.isfinite().all()


# ---- its density


def test_log_density_is_that_of_each_step_given_the_one_before(kind):
    """Worked out beside it by torch.distributions, from the points of the path alone."""
    policy = in_doubles(make(kind))
    features = seen(policy, 6).double()
    met, velocity = [], policy._velocity.forward

    def spy(x, features, t, real=None):
        met.append((x, t[0].item()))
        return velocity(x, features, t)

    policy._velocity.forward = spy
    actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    points = [*(x for x, _ in met), torch.atanh(actions)]
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(points[0]).sum(-1)
    for k, (x, t) in enumerate(met):
        sigma, v = policy.sigma(features), velocity(x, features, torch.full((6,), t, dtype=torch.float64))
        drift = v + sigma**2 / 2 * (t * v - x) / (1 - t)
        step = torch.distributions.Normal(x + drift / 4, sigma * math.sqrt(1 / 4))
        expected = expected + step.log_prob(points[k + 1]).sum(-1)
    expected = expected - (1 - actions**2).log().sum(-1)
    assert [t for _, t in met] == [0.0, 0.25, 0.5, 0.75]
    torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", ["velocity", "sigma"])
@pytest.mark.parametrize("what", ["log-density", "action"])
def test_gradients_are_those_of_finite_differences(kind, part, what):
    """Trap: a log-density whose gradient was exactly 0, or that was returned detached."""
    policy = in_doubles(make(kind))
    features = seen(policy).double()

    def value():
        actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(1))
        return log_prob.sum() if what == "log-density" else (actions * torch.tensor([1.0, -2.0])).sum()

    parameters = list(policy.components[part].parameters())
    gradients = torch.autograd.grad(value(), parameters)
    total = math.sqrt(sum(g.square().sum().item() for g in gradients))
    assert total > 0.1
    generator, step = torch.Generator().manual_seed(2), 1e-5
    for _ in range(3):  # along random directions through all parameters at once
        ways = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        sides = []
        for sign in (1, -2):
            with torch.no_grad():
                for parameter, way in zip(parameters, ways, strict=True):
                    parameter += sign * step * way
                sides.append(value().item())
        with torch.no_grad():
            for parameter, way in zip(parameters, ways, strict=True):
                parameter += step * way
        slope = sum((g * w).sum().item() for g, w in zip(gradients, ways, strict=True))
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_more_noise_is_less_density_and_that_is_what_the_temperature_holds():
    """d log p / d log sigma is -1 for each of the four steps, but for what tanh adds: without it, exactly."""
    sigma = torch.full((5, 2), 0.3, requires_grad=True)
    noise = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    _, log_density = noisy_path(lambda x, t: -x, torch.zeros(5, 2), sigma=sigma, noise=noise)
    (slope,) = torch.autograd.grad(log_density.sum(), sigma)
    torch.testing.assert_close(slope * sigma.detach(), torch.full_like(sigma, -4.0))


def test_gradients_stay_tame_through_many_steps(kind):
    """A plain residual network of 32 steps would multiply them by its weights 32 times."""
    norms = []
    for num_steps in (4, 32):
        policy = make(kind, num_flow_steps=num_steps)
        features = seen(policy, 16)
        actions, _ = policy.sample(features, generator=torch.Generator().manual_seed(0))
        gradients = torch.autograd.grad(actions.sum(), list(policy._velocity.parameters()))
        norms.append(math.sqrt(sum(g.square().sum().item() for g in gradients)))
    assert 0.2 < norms[1] / norms[0] < 5.0


# ---- cloning


def test_cloning_two_actions_gives_both(kind):
    policy = make(kind, hidden=32)
    optimizer = torch.optim.Adam(policy._velocity.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    features = seen(policy)[:1].expand(128, -1)
    for _ in range(300):
        side = torch.randint(0, 2, (128, 1), generator=generator) * 1.6 - 0.8
        loss = policy.imitation_loss(features, torch.cat((side, 0.5 * side), 1), generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    actions = policy.normalize_actions(
        torch.from_numpy(
            policy.act({k: np.repeat(v[:1], 400, axis=0) for k, v in batch().items()}, ActContext(seed=0)).actions
        )
    )[:, 0]
    assert 0.35 < (actions[:, 0] > 0).float().mean() < 0.65
    sides = actions * actions[:, :1].sign()
    assert (sides - torch.tensor([0.8, 0.4])).abs().mean() < 0.2


@pytest.mark.parametrize("junk", [5.0, np.nan])
def test_what_is_masked_teaches_nothing(kind, junk):
    policy = make(kind)
    mask = torch.tensor([1, 0, 1, 0], dtype=torch.bool)
    actions = torch.rand(4, 2)
    losses = []
    for filling in (0.0, junk):
        actions[~mask] = filling
        losses.append(
            policy.imitation_loss(seen(policy), actions, mask, generator=torch.Generator().manual_seed(0))
        )
    assert losses[0] == losses[1]
    assert losses[0].isfinite()


def test_the_limits_can_be_cloned():
    policy = make()
    loss = policy.imitation_loss(seen(policy), torch.tensor([[1.0, -1.0]] * 4))
    assert loss.isfinite()
