"""ACT and Diffusion Policy from folders of the real lerobot package compute what it computed when it was recorded."""

import json

import numpy as np
import pytest
import torch

from dovetail.core.types import ActContext
from dovetail.policies.lerobot import diffusion
from dovetail.policies.lerobot.act_network import Style
from dovetail.policies.lerobot.noise_schedule import NoiseSchedule
from support import lerobot_rule
from support.lerobot_folder import (
    ACTION_AXES,
    CASES,
    FIXTURES,
    load_policy,
    observations,
    recorded,
    write_folder,
)

TOLERANCE = 1e-5


def same(found, expected, *, scale=1.0):
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * scale)


def recorded_noise(monkeypatch):
    """Let diffusion draw the noise of the recording."""
    count = iter(range(1000))
    monkeypatch.setattr(
        diffusion,
        "normal",
        lambda shape, **_: torch.from_numpy(lerobot_rule.noise(f"step{next(count)}", tuple(shape))),
    )


@pytest.mark.parametrize(
    ("case", "old"),
    [*((case, False) for case in CASES), ("act_images", True), ("diffusion_environment", True)],
)
def test_chunk_equals_lerobots_with_other_order_of_axes(case, old, tmp_path, monkeypatch):
    policy = load_policy(case, write_folder(tmp_path / "folder", case, old=old))
    recorded_noise(monkeypatch)
    num_steps = getattr(policy._config, "num_observations", 1)
    found = policy.act(observations(case, num_steps), ActContext(seed=1)).actions
    expected = np.array(recorded(case)["outputs"]["chunk"])
    assert found.shape == (2, policy.spec.horizon, 3)
    in_their_order = found[..., [("x", "y", "z").index(name) for name in ACTION_AXES]]
    same(in_their_order[:, : expected.shape[1]], expected, scale=np.abs(expected).max())
    assert np.abs(expected).max() < 50.0  # the robot's limits had no effect


@pytest.mark.parametrize("case", ["act_environment", "act_images"])
def test_style_and_prediction_in_training_equal_lerobots(case, tmp_path):
    policy = load_policy(case, write_folder(tmp_path / "folder", case))
    outputs = recorded(case)["outputs"]
    actions, padded = lerobot_rule.demonstration(8)
    features = policy.features({k: torch.from_numpy(v) for k, v in observations(case, 1).items()})
    style = Style(
        actions=torch.from_numpy(actions),
        known=torch.from_numpy(~padded),
        noise=torch.from_numpy(lerobot_rule.noise("style", (2, 5))),
    )
    predicted, mean, log_variance = policy._actor(features, style)
    same(mean.detach(), outputs["style_mean"])
    same(log_variance.detach(), outputs["style_log_variance"])
    same(predicted.detach(), outputs["predicted"])


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("diffusion")])
def test_loss_equals_lerobots(case, tmp_path, monkeypatch):
    policy = load_policy(case, write_folder(tmp_path / "folder", case))
    monkeypatch.setattr(
        diffusion, "normal", lambda shape, **_: torch.from_numpy(lerobot_rule.noise("loss", tuple(shape)))
    )
    monkeypatch.setattr(diffusion, "integers", lambda *_, **__: torch.tensor([3, 7]))
    num_steps = policy._config.num_observations
    seen = {key: torch.from_numpy(value) for key, value in observations(case, num_steps).items()}
    actions, _ = lerobot_rule.demonstration(8)
    chunk = torch.from_numpy(actions[:, num_steps - 1 :])  # what a batch has: from the current step on
    loss = policy.imitation_loss(policy.features(seen), chunk)
    same(loss.item(), recorded(case)["outputs"]["loss"])


@pytest.mark.parametrize("number", range(len(lerobot_rule.SCHEDULES)))
def test_denoising_chain_equals_that_of_diffusers(number):
    kind, num_levels, num_steps, schedule, prediction, clip = lerobot_rule.SCHEDULES[number]
    expected = json.loads((FIXTURES / "schedules.json").read_text())[number]
    ours = NoiseSchedule(
        schedule=schedule,
        beta_range=(0.0001, 0.02),
        num_train_steps=num_levels,
        num_steps=num_steps,
        stochastic=kind == "ddpm",
        prediction=prediction,
        clip=clip,
    )
    assert ours.levels == expected["levels"]
    noises = iter(torch.from_numpy(lerobot_rule.noise(f"step{i}", (1, 4, 2))) for i in range(1000))
    x = next(noises)
    for level, after in zip(ours.levels, expected["x"], strict=True):
        noise = next(noises) if kind == "ddpm" and level else None
        x = ours.step(ours.clean(lerobot_rule.stand_in(x, level), x, level), x, level, noise)
        same(x, after)
    noise = torch.from_numpy(lerobot_rule.noise("loss", (1, 4, 2)))
    same(ours.add_noise(torch.ones(1, 4, 2), noise, torch.tensor([num_levels // 2])), expected["noisy"])
