"""The Gaussian policy's density, the normalizer and the critic ensemble."""

import numpy as np
import torch

from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.networks import EnsembleMLP
from dovetail.policies.normalizer import Normalizer
from support.toy_arm import ROBOT, features_of


def test_log_density_is_that_of_a_tanh_gaussian():
    policy = GaussianMLP(GaussianMLPConfig(), robot=ROBOT, seed=3)
    features = features_of(policy, 64)
    actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    mean, log_std = policy._distribution(features)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        [torch.distributions.transforms.TanhTransform(cache_size=1)],
    )
    expected = squashed.log_prob(actions.clamp(-1 + 1e-6, 1 - 1e-6)).sum(-1)
    torch.testing.assert_close(log_prob, expected, rtol=2e-3, atol=2e-3)
    assert log_prob.requires_grad  # a detached log-density would train nothing


def test_initial_std_is_that_of_the_first_actions_before_tanh():
    wide = GaussianMLP(GaussianMLPConfig(initial_std=1.0), robot=ROBOT, seed=3)
    default = GaussianMLP(GaussianMLPConfig(), robot=ROBOT, seed=3)
    features = features_of(wide, 256)
    for policy, std in ((wide, 1.0), (default, 0.135)):
        log_std = policy._distribution(features)[1].detach()
        assert 0.6 * std < float(log_std.exp().mean()) < 1.6 * std
    torch.testing.assert_close(wide._distribution(features)[0], default._distribution(features)[0])


def test_normalizer_does_not_modify_its_input():
    normalizer = Normalizer({"force": 2})
    data = np.array([[1.0, 10.0], [3.0, 10.0]], np.float32)
    normalizer.fit({"force": data})
    values = torch.from_numpy(data.copy())
    out = normalizer("force", values).numpy()
    assert np.array_equal(values.numpy(), data)
    np.testing.assert_allclose(out, [[-1.0, 0.0], [1.0, 0.0]])  # mean 2, std 1; a constant column stays 0


def test_ensemble_equals_its_separate_members():
    torch.manual_seed(0)
    ensemble = EnsembleMLP((5, 8, 8, 1), num_members=3)
    inputs = torch.randn(7, 5)
    out = ensemble(inputs)
    for member in range(3):
        hidden = inputs
        for i, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            hidden = hidden @ weight[member] + bias[member]
            if i < 2:
                hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
                hidden = torch.tanh(hidden * ensemble.scales[i][member] + ensemble.shifts[i][member])
        torch.testing.assert_close(out[member], hidden.squeeze(-1))
