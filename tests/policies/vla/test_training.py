"""The flow-matching loss: by hand, and equal to LeRobot's own losses (recorded). Parts of the network can be frozen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.sampler import Inputs
from dovetail.policies.vla.training import draw_times, flow_matching_errors, flow_matching_loss
from support.recorded_vla import inputs, recorded, write_recorded_folder

CPU = torch.device("cpu")


class Doubling(FlowNetwork):
    """Velocity 2 x + t."""

    dtype = torch.float32

    def prefix(self, images, camera_mask, tokens, token_mask, state):
        return None

    def prefix_and_embeddings(self, images, camera_mask, tokens, token_mask, state):
        return None

    def embed_times(self, times):
        return times[:, None, None]

    def velocity(self, x, time, prefix):
        return 2.0 * x + time


def with_noise(noise):
    return Inputs(*(torch.zeros(1),) * 5, noise)


def test_errors_worked_out_by_hand():
    noise = torch.tensor([[[1.0, 9.0]]])  # the second axis is padding
    errors = flow_matching_errors(Doubling(), with_noise(noise), torch.tensor([[[3.0]]]), torch.tensor([0.25]))
    # x = 0.25 * 1 + 0.75 * 3 = 2.5; velocity 5.25; it should be 1 - 3 = -2
    assert errors.tolist() == [[[7.25**2]]]


def test_masked_actions_do_not_count_even_nan():
    actions = torch.tensor([[[1.0], [torch.nan]], [[2.0], [3.0]]])
    mask = torch.tensor([[True, False], [True, True]])
    generator = torch.Generator().manual_seed(3)
    loss = flow_matching_loss(Doubling(), with_noise(torch.zeros(2, 2, 1)), actions, mask, generator=generator)
    generator = torch.Generator().manual_seed(3)
    times = draw_times(2, generator=generator, device=CPU)
    noise = torch.randn(2, 2, 1, generator=generator)
    total = 0.0
    for row, step in ((0, 0), (1, 0), (1, 1)):
        t, e, a = float(times[row]), float(noise[row, step]), float(actions[row, step])
        total += (2 * (t * e + (1 - t) * a) + t - (e - a)) ** 2
    assert float(loss) == pytest.approx(total / 3, rel=1e-5)


def test_times_have_the_distribution_of_training():
    times = draw_times(200_000, generator=torch.Generator().manual_seed(0), device=CPU)
    assert times.min() >= 0.001 and times.max() <= 1.0
    # Beta(1.5, 1): mean 1.5 / 2.5, and P(beta < 0.5) = 0.5^1.5
    assert float(times.mean()) == pytest.approx(0.001 + 0.999 * 0.6, abs=2e-3)
    assert float(((times - 0.001) / 0.999 < 0.5).float().mean()) == pytest.approx(0.5**1.5, abs=4e-3)


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def case(request, tmp_path_factory):
    folder = write_recorded_folder(request.param, tmp_path_factory.mktemp("base") / request.param)
    network = open_checkpoint(folder).load(device=CPU, dtype=torch.float32)
    found = {key: torch.from_numpy(value) for key, value in recorded(request.param).items()}
    state = nn.functional.pad(found["normalized_state"], (0, 32 - found["normalized_state"].shape[1]))
    noise = torch.from_numpy(inputs()["noise"])
    given = Inputs(found["images"], found["camera_mask"], found["tokens"], found["token_mask"], state, noise)
    return network, given, found


def test_errors_equal_those_of_lerobot(case):
    network, given, theirs = case
    times = torch.from_numpy(inputs()["time"])
    ours = flow_matching_errors(network, given, theirs["normalized_actions"], times)
    assert theirs["losses"].shape == ours.shape and theirs["losses"].mean() > 0.5
    torch.testing.assert_close(ours, theirs["losses"], rtol=1e-4, atol=1e-4)


def test_training_the_expert_lowers_the_loss(case):
    network, given, theirs = case
    expert = network.components["expert"].requires_grad_(True)
    before = {name: value.clone() for name, value in expert.state_dict().items()}
    optimizer = torch.optim.Adam(expert.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        generator = torch.Generator().manual_seed(0)  # the same times and noise, so that losses compare
        loss = flow_matching_loss(network, given, theirs["normalized_actions"], generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    expert.load_state_dict(before)
    network.requires_grad_(False)
    assert losses[-1] < 0.6 * losses[0]


def test_each_parameter_is_in_one_component_and_frozen_ones_get_no_gradient(case):
    network, given, theirs = case
    parts = network.components
    assert set(parts) == {"vision", "text", "expert"}
    ids = [id(p) for part in parts.values() for p in part.parameters()]
    assert sorted(ids) == sorted(id(p) for p in network.parameters())
    network.requires_grad_(False)
    parts["expert"].requires_grad_(True)
    loss = flow_matching_loss(
        network, given, theirs["normalized_actions"], generator=torch.Generator().manual_seed(0)
    )
    loss.backward()
    assert all(p.grad is None for name in ("vision", "text") for p in parts[name].parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in parts["expert"].parameters())
    network.zero_grad()
    network.requires_grad_(False)
