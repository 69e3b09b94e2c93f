"""Guided chunks of VLAs use the true vector-Jacobian product of the network: by hand, and against the whole Jacobian."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dovetail.bench.vla.models import TINY, TINY_PI05, TINY_SMOLVLA, make_inputs, make_network
from dovetail.policies.settings import GuidanceConfig
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.sampler import Commitment, Inputs, Sampler

CPU = torch.device("cpu")
FAMILIES = {"pi0": TINY, "pi05": TINY_PI05, "smolvla": TINY_SMOLVLA}


class Mixing(FlowNetwork):
    """Velocity (2 y, x) of an action (x, y), in float64."""

    def prefix(self, images, camera_mask, tokens, token_mask, state):
        return None

    def prefix_and_embeddings(self, images, camera_mask, tokens, token_mask, state):
        return None

    def embed_times(self, times):
        return times.double()

    def velocity(self, x, time, prefix):
        return torch.stack((2.0 * x[..., 1], x[..., 0]), dim=-1)


def test_guidance_worked_out_by_hand():
    """x = (1, 3) at t = 0, so v = -(6, 1) and x1 = x + v = (-5, 2). Y = (0, 0) with weights (1, 0): the error is (5, 0).
    x1 = (x - 2 y, y - x), so J = [[1, -2], [-1, 1]] and J^T (5, 0) = (5, -10). k = beta = 3: one step of size 1 gives
    (-5, 2) + 3 (5, -10) = (10, -28). With the identity it would be (10, 2)."""
    noise = torch.tensor([[[1.0, 3.0]]], dtype=torch.float64)
    commitment = Commitment(torch.tensor([[[0.0, torch.nan]]]).double(), torch.tensor([[[1.0, 0.0]]]).double())
    sampler = Sampler(Mixing(), num_steps=1, guidance=GuidanceConfig(beta=3.0))
    assert sampler(Inputs(*(torch.zeros(1),) * 5, noise), commitment).tolist() == [[[10.0, -28.0]]]


def by_jacobian(network, inputs, commitment, *, num_steps, beta, is_true=True):
    """The formula of RTC (field notes and Black et al., 2025), with a matrix instead of a vector-Jacobian product."""
    target, weights = commitment
    times = network.embed_times((1.0 - torch.arange(num_steps, dtype=torch.float64) / num_steps).float())
    x, size = inputs.noise, inputs.noise.numel()
    with torch.no_grad():
        prefix = network.prefix(*inputs[:-1])
    for step in range(num_steps):
        t, time = step / num_steps, times[step : step + 1]

        def end(x, t=t, time=time):
            return x - (1.0 - t) * network.velocity(x, time, prefix)

        jacobian = torch.autograd.functional.jacobian(end, x).view(size, size) if is_true else torch.eye(size)
        error = torch.where(weights > 0.0, weights * (target - end(x)), 0.0)
        correction = (jacobian.T @ error.reshape(-1)).view(x.shape)
        inverse_r2 = (t**2 + (1.0 - t) ** 2) / (1.0 - t) ** 2
        gain = beta if t == 0.0 else min((1.0 - t) / t * inverse_r2, beta)
        x = (x + ((end(x) - x) / (1.0 - t) + gain * correction) / num_steps).detach()
    return x


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_are_guided_by_the_jacobian_of_the_network(family):
    torch.manual_seed(4)
    sizes = replace(FAMILIES[family], horizon=3, action_size=4, state_size=4)
    network = make_network(sizes, device=CPU, dtype=torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.5)  # layers with a scale near 0 would hide the Jacobian
        network.action_out.weight.mul_(3.0)
    inputs = make_inputs(sizes, device=CPU, dtype=torch.float32)
    weights = torch.zeros(1, 3, 4)
    weights[:, 0, :3], weights[:, 1, :3] = 1.0, 0.4
    target = torch.where(weights > 0.0, torch.randn(1, 3, 4), torch.nan)
    commitment = Commitment(target, weights)
    found = Sampler(network, num_steps=4)(inputs, commitment)  # with the default settings
    beta = GuidanceConfig().beta
    expected = by_jacobian(network, inputs, commitment, num_steps=4, beta=beta)
    with_identity = by_jacobian(network, inputs, commitment, num_steps=4, beta=beta, is_true=False)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert (with_identity - expected).norm() > 0.1 * expected.norm()
