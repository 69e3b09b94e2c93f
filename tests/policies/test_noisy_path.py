"""Noisy paths against the closed form of a linear velocity field, and densities by hand."""

import math

import pytest
import torch

from dovetail.policies.flows.noisy_path import (
    flow_sde_sigma,
    noisy_path,
    one_noisy_step,
    path_density,
    sde_steps,
    step_density,
    velocity_plus_noise,
)

M, S = 0.6, 0.4  # actions from N(M, S^2): x_t has the mean t M and a known variance


def variance(t):
    return (1 - t) ** 2 + (t * S) ** 2


def velocity(x, t):
    t = t.view(-1, *(1,) * (x.ndim - 1))
    return M + (t * S * S - (1 - t)) / variance(t) * (x - t * M)


def draw(num_steps, num, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(num, *shape, generator=generator, dtype=torch.float64)
    return start, torch.randn(num_steps, num, *shape, generator=generator, dtype=torch.float64)


def without_score(sigma, *, dt):
    """The same noise without the correction of the drift."""
    return velocity_plus_noise(lambda x, t: (sigma(t) * math.sqrt(dt)).expand_as(x), dt=dt)


def test_flow_sde_keeps_the_marginals_and_needs_the_score():
    start, noise = draw(200, 20_000, 1)
    sigma, dt = flow_sde_sigma(0.7, dt=1 / 200), 1 / 200
    path, _ = noisy_path(velocity, sde_steps(sigma, dt=dt), start, noise)
    for number in (50, 100, 200):
        t = number / 200
        assert path[number].mean().item() == pytest.approx(t * M, abs=0.02)
        assert path[number].std().item() == pytest.approx(math.sqrt(variance(t)), abs=0.02)
    wrong, _ = noisy_path(velocity, without_score(sigma, dt=dt), start, noise)
    assert wrong[100].std().item() > 1.5 * math.sqrt(variance(0.5))


def exact_moments(num_steps, sigma):
    """Mean and variance after Euler steps, which are linear in x."""
    mean, var, dt = 0.0, 1.0, 1.0 / num_steps
    for number in range(num_steps):
        t = number * dt
        s = float(sigma(torch.tensor(t, dtype=torch.float64)))
        slope = (t * S * S - (1 - t) - 0.5 * s**2) / variance(t)  # the score is -(x - t M) / variance
        mean, var = mean + dt * (M + slope * (mean - t * M)), (1 + dt * slope) ** 2 * var + s**2 * dt
    return mean, var


@pytest.mark.parametrize("num_steps", [4, 10])
def test_flow_sde_has_the_moments_of_its_linear_steps(num_steps):
    sigma = flow_sde_sigma(0.5, dt=1 / num_steps)
    start, noise = draw(num_steps, 100_000, 1)
    path, _ = noisy_path(velocity, sde_steps(sigma, dt=1 / num_steps), start, noise)
    mean, var = exact_moments(num_steps, sigma)
    assert path[-1].mean().item() == pytest.approx(mean, abs=0.01)
    assert path[-1].var().item() == pytest.approx(var, rel=0.02)


def test_density_of_a_path_is_that_of_a_joint_gaussian():
    """All points of a path of linear steps are jointly Gaussian: x = b + L e with e from N(0, I)."""
    num_steps, dt = 3, 1 / 3
    sigma = flow_sde_sigma(0.5, dt=dt)
    rows, offset = [[1.0, 0.0, 0.0, 0.0]], [0.0]
    for number in range(num_steps):
        t = number * dt
        s = float(sigma(torch.tensor(t, dtype=torch.float64)))
        slope = (t * S * S - (1 - t) - 0.5 * s**2) / variance(t)
        row = [(1 + dt * slope) * value for value in rows[-1]]
        row[number + 1] = s * math.sqrt(dt)
        offset.append(offset[-1] + dt * (M + slope * (offset[-1] - t * M)))
        rows.append(row)
    chain = torch.distributions.MultivariateNormal(
        torch.tensor(offset, dtype=torch.float64), scale_tril=torch.tensor(rows, dtype=torch.float64)
    )
    start, noise = draw(num_steps, 50, 1)
    steps = sde_steps(sigma, dt=dt)
    path, log_density = noisy_path(velocity, steps, start, noise)
    expected = chain.log_prob(torch.cat(path, dim=1))
    torch.testing.assert_close(log_density, expected)
    torch.testing.assert_close(path_density(velocity, steps, path), expected)
    wrong = path_density(velocity, without_score(sigma, dt=dt), path)
    assert (wrong - expected).abs().mean() > 0.05


def test_first_step_has_the_noise_of_the_second():
    sigma = flow_sde_sigma(0.5, dt=0.25)
    found = [sigma(torch.tensor(t)).item() for t in (0.0, 0.25, 0.5, 0.75)]
    # 0.5 * sqrt(3), sqrt(3), sqrt(1), sqrt(1 / 3)
    assert found == pytest.approx([0.866025, 0.866025, 0.5, 0.288675], rel=1e-5)
    assert math.isfinite(flow_sde_sigma(0.5, dt=1.0)(torch.tensor(0.0)).item())


def test_chain_of_flow_noise_by_hand():
    """From 1 to 0.6 to 0.2 in two steps with v = -x and std 0.1: means 0.5 and 0.3, so the noise was 1 and -1."""
    path = [torch.tensor([[value]]) for value in (1.0, 0.6, 0.2)]
    steps = velocity_plus_noise(lambda x, t: torch.full_like(x, 0.1), dt=0.5)
    found = path_density(lambda x, t: -x, steps, path).item()
    expected = sum(-0.5 * e * e - 0.5 * math.log(2 * math.pi) for e in (1.0, 1.0, -1.0)) - 2 * math.log(0.1)
    assert found == pytest.approx(expected, abs=1e-5)


def test_one_noisy_step_is_plain_before_and_after_it():
    start, noise = draw(1, 4, 2, 3)
    chosen = torch.tensor([0, 1, 3, 2])
    steps = sde_steps(flow_sde_sigma(0.5, dt=0.25), dt=0.25)
    before, after, end = one_noisy_step(velocity, steps, start, noise[0], chosen=chosen, num_steps=4)
    for row, number in enumerate(chosen.tolist()):
        x = start[row : row + 1]
        for k in range(4):
            t = torch.full((1,), k / 4, dtype=torch.float64)
            mean, std = steps(x, velocity(x, t), t.view(1, 1, 1))
            if k == number:
                torch.testing.assert_close(before[row : row + 1], x)
            x = mean + std * noise[0, row] if k == number else x + velocity(x, t) / 4
            if k == number:
                torch.testing.assert_close(after[row : row + 1], x)
        torch.testing.assert_close(end[row : row + 1], x)
    density = step_density(velocity, steps, before, after, chosen / 4.0)
    assert density.shape == (4, 2)
    std = torch.stack([flow_sde_sigma(0.5, dt=0.25)(k / 4.0) * 0.5 for k in chosen.double()])
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(noise[0]).sum(-1)
    torch.testing.assert_close(density, normal - 3 * std.log()[:, None])
