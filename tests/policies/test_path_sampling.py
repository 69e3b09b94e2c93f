"""Flow-Noise: the learned standard deviation of each step stays within its range, and counts in densities and entropies."""

import math

import pytest
import torch

from dovetail.policies.flows.path_sampling import NoisyPaths, PathNoise
from dovetail.policies.settings import PathNoiseConfig

ROWS, CHUNK, NUM_FEATURES, RANGE = 3, (2, 4), 5, (0.08, 0.16)
NORMAL_ENTROPY = 0.5 * (1.0 + math.log(2.0 * math.pi))


def make():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PathNoise(chunk=CHUNK, num_features=NUM_FEATURES, hidden=16, std_range=RANGE)


def inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, *CHUNK, generator=generator)
    return x, torch.randn(ROWS, NUM_FEATURES, generator=generator), torch.tensor([0.0, 0.5, 0.75])


def set_last(noise, bias):
    """The same output of the last layer for all inputs."""
    with torch.no_grad():
        noise.net[-1].bias.copy_(bias)


def test_std_starts_in_the_middle_of_its_range_and_never_leaves_it():
    noise = make()
    middle = math.sqrt(RANGE[0] * RANGE[1])  # of the logarithms
    torch.testing.assert_close(noise(*inputs()), torch.full((ROWS, *CHUNK), middle))
    set_last(noise, torch.tensor([-50.0, 50.0] * 4))
    low, high = noise(*inputs()).flatten(1)[:, :2].unbind(1)
    assert low.tolist() == pytest.approx([RANGE[0]] * ROWS, rel=1e-5)
    assert high.tolist() == pytest.approx([RANGE[1]] * ROWS, rel=1e-5)


def test_std_depends_on_the_point_the_features_and_the_time():
    noise = make()
    with torch.no_grad():
        noise.net[-1].weight.normal_(generator=torch.Generator().manual_seed(1))
    x, features, t = inputs()
    found = noise(x, features, t)
    for other in ((x + 1.0, features, t), (x, features + 1.0, t), (x, features, t + 0.125)):
        assert not torch.allclose(noise(*other), found, rtol=1e-3)


@pytest.mark.parametrize("one_step", [False, True])
def test_density_and_entropy_worked_out_by_hand(one_step):
    """Two steps with velocity 2 from 1, so of 1 each. Real axes have std 0.1 and 0.12; the other two are padding."""
    noise, num_steps = make(), 2
    stds = torch.tensor([0.1, 0.12, 0.08, 0.16])
    share = (stds.log() - math.log(RANGE[0])) / math.log(2.0)  # of the range, as (tanh + 1) / 2
    set_last(noise, torch.atanh((2.0 * share - 1.0).clamp(-0.999, 0.999)).repeat(CHUNK[0]))
    config = PathNoiseConfig(type="learned", std_range=RANGE, one_step=one_step)
    paths = NoisyPaths(config, chunk_shape=CHUNK, num_steps=num_steps, std=noise, num_axes=2)
    features = inputs()[1]
    # from 1 to 2.1 to 3.1 - 0.24: errors of 0.1 and -0.24 with a mean of x + 1
    points = [torch.full((ROWS, *CHUNK), value) for value in (1.0, 2.1, 2.86)]
    if one_step:
        drawn = torch.cat((points[1].flatten(1), points[2].flatten(1), torch.ones(ROWS, 1)), 1)
        errors, start = (-0.24,), 0.0
    else:
        drawn, errors = torch.stack(points, 1).flatten(1), (0.1, -0.24)
        start = 2 * -0.5 * (1.0 + math.log(2.0 * math.pi))  # both real axes start at 1
    velocity = lambda x, t: torch.full_like(x, 2.0)  # noqa: E731
    expected = start + sum(
        -0.5 * (error / std) ** 2 - math.log(std) - 0.5 * math.log(2.0 * math.pi)
        for error in errors
        for std in (0.1, 0.12)
    )
    found = paths.density(velocity, features, drawn)
    torch.testing.assert_close(found, torch.full((ROWS, CHUNK[0]), expected), rtol=1e-4, atol=1e-4)
    entropy = len(errors) * (math.log(0.1) + math.log(0.12) + 2 * NORMAL_ENTROPY)
    torch.testing.assert_close(
        paths.entropy(features, drawn), torch.full((ROWS, CHUNK[0]), entropy), rtol=1e-4, atol=1e-4
    )
