"""Our Adam against torch's Adam."""

import copy

import torch

from dovetail.config.schema import OptimizerConfig
from dovetail.learn.adam import Adam, clip_


def test_adam_matches_torch_in_steps_and_state():
    torch.manual_seed(0)
    ours = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    theirs = copy.deepcopy(ours)
    adam, reference = Adam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=1e-2, fused=True)
    for _ in range(5):
        gradients = [torch.randn_like(p) for p in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        adam.descend(gradients)
        reference.step()
        adam.load_state_dict(copy.deepcopy(adam.state_dict()))  # continues from a copy of its state
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for mine, its in zip(
        adam.state_dict()["state"].values(), reference.state_dict()["state"].values(), strict=True
    ):
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[slot], its[slot]) for slot in mine)


def test_own_settings_equal_torchs_adamw_with_the_schedule():
    torch.manual_seed(0)
    ours = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    theirs = copy.deepcopy(ours)
    own = OptimizerConfig(lr=0.1, weight_decay=0.5, betas=(0.8, 0.9), schedule="linear", decay_updates=4)
    adam = Adam(ours, lr=1e-3, own=own)
    reference = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.5, betas=(0.8, 0.9), fused=True)
    for lr in (0.1, 0.075, 0.05, 0.025, 0.0):
        reference.param_groups[0]["lr"] = lr
        gradients = [torch.randn_like(p) for p in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        adam.descend(gradients)
        reference.step()
        resumed = Adam(ours, lr=1e-3, own=own)  # continues the schedule
        resumed.load_state_dict(copy.deepcopy(adam.state_dict()))
        adam = resumed
    assert adam._num_steps == 5
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its)


def test_clip_scales_all_gradients_by_one_factor():
    gradients = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    assert clip_(gradients, 10.0) == 5.0
    assert gradients[0] == 3.0  # shorter than that: as it was
    assert clip_(gradients, 1.0) == 5.0
    torch.testing.assert_close(gradients[1], torch.tensor([0.0, 0.8]))
