"""Losses and denoising steps of ACT and Diffusion Policy against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.types import ActContext
from dovetail.policies.lerobot import act, diffusion
from dovetail.policies.lerobot.act import Act, ActConfig, style_divergence
from dovetail.policies.lerobot.diffusion import Diffusion, DiffusionConfig
from dovetail.policies.lerobot.noise_schedule import NoiseSchedule
from dovetail.policies.lerobot.transformer import dropout, keep_all
from support.toy_arm import ROBOT, features_of

SMALL_ACT = {"horizon": 4, "hidden": 8, "num_heads": 2, "feedforward": 8, "num_encoder_layers": 1, "style_size": 2}
SMALL_ACT |= {"num_style_layers": 1, "dropout": 0.0}
SMALL_DIFFUSION = {"horizon": 4, "num_observations": 1, "channels": (8, 16), "kernel_size": 3, "time_features": 4}
SMALL_DIFFUSION |= {"num_train_steps": 10}


def make_act(**config):
    return Act(ActConfig(**SMALL_ACT | config), robot=ROBOT, seed=3)


def make_diffusion(**config):
    return Diffusion(DiffusionConfig(**SMALL_DIFFUSION | config), robot=ROBOT, seed=3)


def schedule(**changes):
    settings = {"schedule": "linear", "beta_range": (0.5, 0.5), "num_train_steps": 3, "num_steps": 3}
    settings |= {"stochastic": True, "prediction": "epsilon", "clip": None}
    return NoiseSchedule(**settings | changes)


# ---- ACT


def test_style_divergence_has_the_closed_form():
    mean, log_variance = torch.tensor([[1.0, -2.0], [0.0, 0.0]]), torch.tensor([[0.0, math.log(4.0)], [0.0, 0.0]])
    # 0.5 (1 + 1 - 1 - 0) + 0.5 (4 + 4 - 1 - ln 4)
    assert style_divergence(mean, log_variance).tolist() == pytest.approx([0.5 + 0.5 * (7 - math.log(4.0)), 0.0])


def test_act_loss_is_the_mean_error_of_known_actions_plus_weighted_divergence(monkeypatch):
    policy = make_act(kl_weight=3.0)
    features = features_of(policy, 2)
    actions = torch.zeros(2, 4, 2)
    actions[0, 0] = torch.tensor([0.5, -1.0])
    actions[1, 1:] = math.nan  # past the end
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    mean, log_variance = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 2)  # divergences 0.5 and 2
    monkeypatch.setattr(
        policy._actor, "forward", lambda *_, **__: (torch.full((2, 4, 2), 0.25), mean, log_variance)
    )
    # row 0: errors (0.25 + 1.25) / 2, then 0.25 three times; row 1: 0.25
    expected = (0.75 + 3 * 0.25 + 0.25) / 5 + 3.0 * (4 * 0.5 + 1 * 2.0) / 5
    assert policy.imitation_loss(features, actions, mask).item() == pytest.approx(expected)


def test_act_ignores_masked_actions_in_loss_style_and_gradient():
    policy = make_act()
    features = features_of(policy, 2)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    actions = torch.rand(2, 4, 2)
    gradients = []
    for masked in (0.3, math.nan):
        actions[0, 2:] = masked
        policy._actor.zero_grad()
        loss = policy.imitation_loss(features, actions, mask, generator=torch.Generator().manual_seed(1))
        loss.backward()
        gradients.append([p.grad.clone() for p in policy._actor.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(list(policy._actor.parameters()))
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second) and first.isfinite().all()


def test_act_loss_of_micro_batches_adds_up_to_that_of_the_batch(monkeypatch):
    policy = make_act()
    features, actions = features_of(policy, 3), torch.rand(3, 4, 2)
    mask = torch.tensor([[True] * 4, [True, False, False, False], [True, True, False, False]])
    noise = torch.randn(3, 2)
    monkeypatch.setattr(act, "normal", lambda *_, **__: noise)
    whole = policy.imitation_loss(features, actions, mask) * mask.sum()
    parts = 0.0
    for rows in (slice(0, 1), slice(1, 3)):
        monkeypatch.setattr(act, "normal", lambda *_, rows=rows, **__: noise[rows])
        parts += policy.imitation_loss(features[rows], actions[rows], mask[rows]) * mask[rows].sum()
    assert whole.item() == pytest.approx(parts.item(), rel=1e-5)


def test_dropout_draws_from_its_generator_and_keeps_the_mean():
    x = torch.ones(200, 50)
    one, again = (dropout(0.25, torch.Generator().manual_seed(5))(x) for _ in range(2))
    assert torch.equal(one, again)
    assert sorted(one.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert one.mean().item() == pytest.approx(1.0, abs=0.02)
    assert dropout(0.0, None) is keep_all
    policy = make_act(dropout=0.5)
    features, actions = features_of(policy, 2), torch.rand(2, 4, 2)

    def loss(seed):
        return policy.imitation_loss(features, actions, generator=torch.Generator().manual_seed(seed)).item()

    state = torch.random.get_rng_state()
    assert loss(1) == loss(1) != loss(2)
    assert torch.equal(state, torch.random.get_rng_state())


def test_act_without_style_learns_from_the_error_alone():
    policy = make_act(style=False, kl_weight=100.0)
    assert not any("vae" in name for name, _ in policy._actor.named_parameters())
    features, actions = features_of(policy, 2), torch.rand(2, 4, 2)
    predicted, _, _ = policy._actor(features)
    expected = (predicted - actions).abs().mean().item()
    assert policy.imitation_loss(features, actions).item() == pytest.approx(expected)


# ---- diffusion


def test_cosine_schedule_has_the_shares_of_the_paper():
    ours = schedule(schedule="squaredcos_cap_v2", num_train_steps=4, num_steps=4)

    def share(part):
        return math.cos((part + 0.008) / 1.008 * math.pi / 2) ** 2

    for level in range(3):
        assert ours.signal(level) == pytest.approx(share((level + 1) / 4) / share(0.0), rel=1e-5)
    assert ours.signal(3) == pytest.approx(ours.signal(2) * 0.001, rel=1e-3)  # the last beta is at most 0.999
    assert ours.signal(-1) == 1.0


def test_ddpm_step_is_the_mean_and_variance_of_the_posterior():
    ours = schedule()  # shares 0.5, 0.25, 0.125
    x, clean, noise = torch.tensor([[[2.0]]]), torch.tensor([[[0.4]]]), torch.tensor([[[3.0]]])
    # q(x_1 | x_2, x_0) with beta 0.5: mean (sqrt(0.25) 0.5 x_0 + sqrt(0.5) 0.75 x_2) / 0.875, variance 0.75 / 0.875 * 0.5
    mean = (0.5 * 0.5 * 0.4 + math.sqrt(0.5) * 0.75 * 2.0) / 0.875
    assert ours.step(clean, x, 2, noise).item() == pytest.approx(mean + 3.0 * math.sqrt(0.75 / 0.875 * 0.5))
    # the last step has no noise: x_0 itself
    assert ours.step(clean, x, 0, noise).item() == pytest.approx(0.4)
    assert schedule(clip=0.3).step(clean, x, 0, noise).item() == pytest.approx(0.3)


def test_ddim_step_keeps_the_noise_of_x():
    ours = schedule(stochastic=False, clip=0.3)
    x, clean = torch.tensor([[[2.0]]]), torch.tensor([[[0.4]]])
    direction = (2.0 - math.sqrt(0.125) * 0.4) / math.sqrt(0.875)  # by x_0 before clipping, as diffusers does
    assert ours.step(clean, x, 2, None).item() == pytest.approx(0.5 * 0.3 + math.sqrt(0.75) * direction)


def test_clean_actions_follow_from_predicted_noise_or_are_predicted():
    clean, noise = torch.tensor([[[0.4]]]), torch.tensor([[[-1.5]]])
    x = schedule().add_noise(clean, noise, torch.tensor([1]))
    assert x.item() == pytest.approx(0.5 * 0.4 + math.sqrt(0.75) * -1.5)
    assert schedule().clean(noise, x, 1).item() == pytest.approx(0.4)
    assert schedule().target(clean, noise) is noise
    assert schedule(prediction="sample").clean(clean, x, 1) is clean
    assert schedule(prediction="sample").target(clean, noise) is clean


def test_fewer_steps_skip_levels_and_more_than_levels_are_refused():
    assert schedule(num_train_steps=10, num_steps=4).levels == [6, 4, 2, 0]
    with pytest.raises(Exception, match=r"num_denoising_steps=11.*10 noise levels"):
        schedule(num_train_steps=10, num_steps=11)


def test_diffusion_loss_is_the_error_of_the_noise_over_known_actions(monkeypatch):
    policy = make_diffusion()
    features = features_of(policy, 2)
    noise = torch.tensor(np.random.default_rng(0).normal(size=(2, 4, 2)), dtype=torch.float32)
    monkeypatch.setattr(diffusion, "normal", lambda *_, **__: noise)
    monkeypatch.setattr(diffusion, "integers", lambda *_, **__: torch.tensor([0, 9]))
    seen = []
    monkeypatch.setattr(
        policy._actor, "forward", lambda x, levels, features: seen.append((x, levels)) or torch.full_like(x, 0.5)
    )
    actions = torch.rand(2, 4, 2)
    clean = actions.clone()
    actions[1, 2:], clean[1, 2:] = math.nan, clean[1, 1]  # missing actions repeat the last known one
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    loss = policy.imitation_loss(features, actions, mask)
    assert loss.item() == pytest.approx(((noise - 0.5) ** 2)[mask].mean().item())
    shares = [policy._noise_schedule.signal(level) for level in (0, 9)]
    for row, share in enumerate(shares):
        expected = math.sqrt(share) * clean[row] + math.sqrt(1 - share) * noise[row]
        torch.testing.assert_close(seen[0][0][row], expected)
    assert seen[0][1].tolist() == [0, 9]


def test_guidance_of_a_perfect_denoiser_gives_the_committed_actions(monkeypatch):
    """For actions of N(0, 1), E[x_0 | x] = sqrt(a) x. Without a limit of the gain, its guided value is the target."""
    policy = make_diffusion(prediction="sample", clip_sample=None, guidance={"beta": 1e9, "schedule": "ones"})
    levels = policy._noise_schedule
    monkeypatch.setattr(policy._actor, "forward", lambda x, level, _: x * math.sqrt(levels.signal(int(level[0]))))
    target = torch.rand(1, 4, 2)
    committed = diffusion.Committed(target=target, weights=torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    x = torch.randn(1, 4, 2)
    for level in (0, 4, 8):
        clean = policy._clean(x, level, torch.zeros(1, 0), committed)
        torch.testing.assert_close(clean[:, :2], target[:, :2], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(clean[:, 2:], x[:, 2:] * math.sqrt(levels.signal(level)))


@pytest.mark.parametrize("scheduler", ["ddpm", "ddim"])
def test_prefix_moves_a_chunk_of_diffusion_towards_it(scheduler):
    policy = make_diffusion(scheduler=scheduler)
    seen = {key: np.zeros((1, *spec.shape), np.float32) for key, spec in policy.spec.observation.items()}
    low, high = ROBOT.action.bounds
    prefix = np.full((1, 4, 2), np.nan, np.float32)
    prefix[:, :2] = low + 0.8 * (high - low)
    plain = policy.act(seen, ActContext(deterministic=True)).actions
    guided = policy.act(seen, ActContext(deterministic=True, prefix=prefix, delay=2, horizon=2)).actions
    before, after = (np.abs((chunk - prefix) / (high - low))[:, :2].mean() for chunk in (plain, guided))
    assert after < 0.5 * before
