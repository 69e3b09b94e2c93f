"""The flow actor of SAC-Flow: noisy paths against closed forms, their density and its gradients."""

import math

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext
from dovetail.policies.flows import noisy_path as paths_module
from dovetail.policies.flows.flow_actor import FlowActor, FlowActorConfig
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_policy
from support.toy_arm import DETERMINISTIC, ROBOT, features_of, observations, snapshot_of

KINDS = ("gated", "transformer")
M, S = 0.7, 0.4  # mean and std of the end of the Gaussian flow


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def noisy_path(velocity, x, *, sigma, noise):
    """Steps with this sigma; the velocity is a function of one time for all rows."""
    steps = paths_module.sde_steps(lambda _: sigma, dt=1.0 / len(noise))
    return paths_module.noisy_path(lambda x, t: velocity(x, t[0].item()), steps, x, noise)


def make(kind="gated", seed=3, **config):
    return FlowActor(FlowActorConfig(**({"velocity": kind, "hidden": 16} | config)), robot=ROBOT, seed=seed)


def in_float64(policy):
    """With random changes of all parameters, as after training."""
    for module in policy.components.values():
        module.double()
        for parameter in module.parameters():
            with torch.no_grad():
                parameter += 0.1 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
    return policy


# ---- Policy contract


@pytest.mark.parametrize("config", [{}, {"history": {"force": 3}}, {"num_flow_steps": 1}, {"inputs": ("force",)}])
def test_flow_actor_keeps_the_policy_contract(kind, config):
    donor = make(kind, seed=4, **config)
    check_policy(lambda: make(kind, **config), snapshot=snapshot_of(donor))
    assert isinstance(donor, TrainablePolicy)


def test_config_type_flow_actor_has_these_defaults():
    assert resolve("policy", "flow_actor") is FlowActor
    assert FlowActorConfig().num_flow_steps == 4


@pytest.mark.parametrize("sigma", [(0.0, 1.0), (0.5, 0.5), (1.0, 0.1)])
def test_empty_sigma_range_is_refused(sigma):
    with pytest.raises(ValueError, match="0 < low < high"):
        FlowActorConfig(sigma_range=sigma)


def test_deterministic_action_is_the_end_of_the_path_without_noise(kind):
    """The drift term is included; without it the path would end elsewhere."""
    policy = make(kind, sigma_range=(0.5, 0.9))
    features, x = features_of(policy), torch.zeros(4, 2)
    sigma = policy.sigma(features)
    for t in (0.0, 0.25, 0.5, 0.75):
        v = policy._velocity(x, features, torch.full((4,), t))
        x = x + (v + sigma**2 / 2 * (t * v - x) / (1 - t)) / 4
    low, high = ROBOT.action.bounds
    expected = low + (np.tanh(x.detach().numpy()) + 1) / 2 * (high - low)
    np.testing.assert_allclose(
        policy.act(observations(), DETERMINISTIC).actions[:, 0], expected, rtol=1e-5, atol=1e-6
    )


def test_each_row_has_its_own_noise_at_every_step(kind):
    policy = make(kind)
    same = features_of(policy)[:1].expand(8, -1)
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


# ---- paths of a Gaussian flow with a closed form: x_t = (1 - t) noise + t a, a from N(M, S^2)


def variance(t):
    return (1 - t) ** 2 + (t * S) ** 2


def gaussian_velocity(x, t):
    return M + (t * S * S - (1 - t)) / variance(t) * (x - t * M)


def exact_moments(num_steps, sigma):
    """Mean and variance after the Euler steps, which are all linear."""
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
def test_moments_of_the_path_match_the_closed_form(num_steps, sigma):
    mean, var = exact_moments(num_steps, sigma)
    ends = paths(num_steps, sigma)
    assert ends.mean().item() == pytest.approx(mean, abs=0.005)
    assert ends.var().item() == pytest.approx(var, rel=0.015)


@pytest.mark.parametrize("sigma", [0.0001, 0.3, 1.0])
def test_noise_does_not_change_the_marginals(sigma):
    """Without the drift correction the variance would grow by more than sigma^2."""
    ends = paths(100, sigma, num=50_000)
    plain = torch.randn(50_000, 1, generator=torch.Generator().manual_seed(1))
    for step in range(100):
        plain = plain + gaussian_velocity(plain, step / 100) / 100
    assert ends.mean().item() == pytest.approx(M, abs=0.02)
    assert ends.std().item() == pytest.approx(S, abs=0.015)
    assert plain.mean().item() == pytest.approx(M, abs=0.02)
    assert plain.std().item() == pytest.approx(ends.std().item(), abs=0.02)


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_marginals_match_the_closed_form_at_every_time(sigma):
    num_steps, visited = 64, []

    def velocity(x, t):
        visited.append((t, x.mean().item(), x.var().item()))
        return gaussian_velocity(x, t)

    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(30_000, 1, generator=generator), torch.randn(num_steps, 30_000, 1, generator=generator)
    noisy_path(velocity, x0, sigma=torch.full((30_000, 1), sigma), noise=noise)
    for t, mean, var in visited:
        assert mean == pytest.approx(t * M, abs=0.03)
        assert var == pytest.approx(variance(t), rel=0.08, abs=0.01)


def test_four_steps_with_little_noise_are_close_to_four_without():
    """With K = 4, as in the policy, both deviate from the marginals by the same amount."""
    for sigma in (0.1, 0.3):
        mean, var = exact_moments(4, sigma)
        plain_mean, plain_var = exact_moments(4, 0.0)
        assert mean == pytest.approx(plain_mean, abs=0.02)
        assert math.sqrt(var) == pytest.approx(math.sqrt(plain_var), abs=0.06)


def test_no_step_divides_by_zero():
    for num_steps in (1, 4, 7):
        path, log_density = noisy_path(
            gaussian_velocity,
            torch.zeros(3, 1),
            sigma=torch.ones(3, 1),
            noise=torch.ones(num_steps, 3, 1),
        )
        assert path[-1].isfinite().all() and log_density.isfinite().all()


# ---- density


def test_log_density_is_the_sum_over_the_steps(kind):
    """Computed with torch.distributions from the points of the path."""
    policy = in_float64(make(kind))
    features = features_of(policy, 6).double()
    visited, velocity = [], policy._velocity.forward

    def spy(x, features, t, axis_mask=None):
        visited.append((x, t[0].item()))
        return velocity(x, features, t)

    policy._velocity.forward = spy
    actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    points = [*(x for x, _ in visited), torch.atanh(actions)]
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(points[0]).sum(-1)
    for k, (x, t) in enumerate(visited):
        sigma, v = policy.sigma(features), velocity(x, features, torch.full((6,), t, dtype=torch.float64))
        drift = v + sigma**2 / 2 * (t * v - x) / (1 - t)
        step = torch.distributions.Normal(x + drift / 4, sigma * math.sqrt(1 / 4))
        expected = expected + step.log_prob(points[k + 1]).sum(-1)
    expected = expected - (1 - actions**2).log().sum(-1)
    assert [t for _, t in visited] == [0.0, 0.25, 0.5, 0.75]
    torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("component", ["velocity", "sigma"])
@pytest.mark.parametrize("output", ["log-density", "action"])
def test_gradients_match_finite_differences(kind, component, output):
    policy = in_float64(make(kind))
    features = features_of(policy).double()

    def value():
        actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(1))
        return log_prob.sum() if output == "log-density" else (actions * torch.tensor([1.0, -2.0])).sum()

    parameters = list(policy.components[component].parameters())
    gradients = torch.autograd.grad(value(), parameters)
    total = math.sqrt(sum(g.square().sum().item() for g in gradients))
    assert total > 0.1
    generator, step = torch.Generator().manual_seed(2), 1e-5
    for _ in range(3):  # along random directions through all parameters at once
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        values = []
        for sign in (1, -2):
            with torch.no_grad():
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter += sign * step * direction
                values.append(value().item())
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += step * direction
        slope = sum((g * w).sum().item() for g, w in zip(gradients, directions, strict=True))
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_log_density_falls_by_one_per_step_and_log_sigma():
    """d log p / d log sigma is exactly -1 for each of the four steps, before tanh."""
    sigma = torch.full((5, 2), 0.3, requires_grad=True)
    noise = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    _, log_density = noisy_path(lambda x, t: -x, torch.zeros(5, 2), sigma=sigma, noise=noise)
    (slope,) = torch.autograd.grad(log_density.sum(), sigma)
    torch.testing.assert_close(slope * sigma.detach(), torch.full_like(sigma, -4.0))


def test_gradients_do_not_explode_over_many_steps(kind):
    """A plain residual network with 32 steps would multiply them by its weights 32 times."""
    norms = []
    for num_steps in (4, 32):
        policy = make(kind, num_flow_steps=num_steps)
        features = features_of(policy, 16)
        actions, _ = policy.sample(features, generator=torch.Generator().manual_seed(0))
        gradients = torch.autograd.grad(actions.sum(), list(policy._velocity.parameters()))
        norms.append(math.sqrt(sum(g.square().sum().item() for g in gradients)))
    assert 0.2 < norms[1] / norms[0] < 5.0


# ---- cloning


@pytest.mark.extended
def test_cloning_of_two_actions_reproduces_both(kind):
    policy = make(kind, hidden=32)
    optimizer = torch.optim.Adam(policy._velocity.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    features = features_of(policy)[:1].expand(128, -1)
    for _ in range(300):
        side = torch.randint(0, 2, (128, 1), generator=generator) * 1.6 - 0.8
        loss = policy.imitation_loss(features, torch.cat((side, 0.5 * side), 1), generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    actions = policy.normalize_actions(
        torch.from_numpy(
            policy.act(
                {k: np.repeat(v[:1], 400, axis=0) for k, v in observations().items()}, ActContext(seed=0)
            ).actions
        )
    )[:, 0]
    assert 0.35 < (actions[:, 0] > 0).float().mean() < 0.65
    sides = actions * actions[:, :1].sign()
    assert (sides - torch.tensor([0.8, 0.4])).abs().mean() < 0.2


@pytest.mark.parametrize("padding", [5.0, np.nan])
def test_masked_actions_do_not_change_the_loss(kind, padding):
    policy = make(kind)
    mask = torch.tensor([1, 0, 1, 0], dtype=torch.bool)
    actions = torch.rand(4, 2)
    losses = []
    for filling in (0.0, padding):
        actions[~mask] = filling
        losses.append(
            policy.imitation_loss(features_of(policy), actions, mask, generator=torch.Generator().manual_seed(0))
        )
    assert losses[0] == losses[1]
    assert losses[0].isfinite()


def test_actions_at_the_limits_have_a_finite_loss():
    policy = make()
    loss = policy.imitation_loss(features_of(policy), torch.tensor([[1.0, -1.0]] * 4))
    assert loss.isfinite()
