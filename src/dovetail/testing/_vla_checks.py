"""The checks of `check_vla_model`. They need torch, which `dovetail.testing` does not load."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.trainable import TrainablePolicy, ValuedPolicy
from dovetail.policies.vla.settings import MODEL, UserModelConfig
from dovetail.policies.vla.user_model import UserModel
from dovetail.policies.vla.user_model_policy import UserModelPolicy
from dovetail.testing._rig import expect
from dovetail.testing.policies import check_policy, random_inputs

__all__ = ["check_model"]

_NUM_SAMPLES = 2048
_STANDARD_ERRORS = 6.0


def check_model(config: UserModelConfig, *, robot: RobotSpec, seed: int) -> frozenset[str]:
    """See `check_vla_model`."""

    def make(seed: int = seed) -> Any:
        return UserModelPolicy(config, robot=robot, seed=seed)

    policy = make()
    snapshot = WeightSnapshot(version=7, components=policy.weights(), hashes={})
    check_policy(make, snapshot=snapshot, seed=seed)
    rng = np.random.default_rng(seed)
    _check_weights(policy, make(seed + 1), snapshot, rng)
    found = {"act"}
    if not policy.why_not(TrainablePolicy):
        _check_imitation(policy, rng)
        found.add("imitate")
    if not policy.why_not(ValuedPolicy):
        _check_density(policy, rng)
        found.add("ppo")
    return frozenset(found)


def _check_weights(policy: Any, other: Any, snapshot: WeightSnapshot, rng: np.random.Generator) -> None:
    """Everything that decides an action is in the weights."""
    other.load(snapshot)
    inputs = random_inputs(policy.spec, rng, batch=2)
    ours, theirs = (one.act(inputs, ActContext(deterministic=True)).actions for one in (policy, other))
    expect(
        np.allclose(ours, theirs, rtol=1e-4, atol=1e-5),
        "two models with the same weights act differently: parameters and buffers must be in state_dict()",
    )


def _features(policy: Any, rng: np.random.Generator, *, batch: int) -> Any:
    inputs = random_inputs(policy.spec, rng, batch=batch)
    return policy.features({key: torch.tensor(value) for key, value in inputs.items()})


def _check_imitation(policy: Any, rng: np.random.Generator) -> None:
    spec = policy.spec
    features = _features(policy, rng, batch=4)
    actions = torch.tensor(rng.uniform(-1.0, 1.0, (4, spec.horizon, *spec.action.shape)), dtype=torch.float32)
    mask = torch.ones(4, spec.horizon, dtype=torch.bool)
    loss = policy.imitation_loss(features, actions, mask, generator=torch.Generator().manual_seed(0))
    expect(bool(torch.isfinite(loss)), f"the imitation loss is {loss.item()}")
    _expect_gradient(policy, loss, "the imitation loss")
    model = policy.components[MODEL]
    if spec.horizon > 1 and isinstance(model, UserModel) and hasattr(model.module, "imitation_loss"):
        mask[:, -1] = False
        actions.requires_grad_()
        (gradient,) = torch.autograd.grad(
            model.imitation_loss(features, actions, mask), [actions], allow_unused=True
        )
        ignored = gradient is None or not gradient[:, -1].any()
        expect(
            ignored, "an action that the mask excludes changes imitation_loss: count only actions where it is true"
        )


def _check_density(policy: Any, rng: np.random.Generator) -> None:
    one = random_inputs(policy.spec, rng, batch=1)
    many = {key: np.repeat(value, _NUM_SAMPLES, axis=0) for key, value in one.items()}
    chunk = policy.act(many, ActContext(seed=1))
    drawn = torch.from_numpy(chunk.extras["drawn"])
    expect(
        float(drawn.std(0).max()) > 0.0,
        "forward returns the same action for every draw, but PPO needs samples: draw them unless deterministic=True",
    )
    features = policy.features({key: torch.tensor(value) for key, value in many.items()})
    with torch.no_grad():
        log_prob, entropy, value = policy.evaluate_actions(features, drawn)
        expected_value = policy.value(features)
    expect(
        bool(torch.allclose(log_prob, torch.from_numpy(chunk.extras["log_prob"]), rtol=1e-3, atol=1e-3)),
        "forward's sample_log_prob differs from that of evaluate_actions",
    )
    expect(
        bool(torch.allclose(value, expected_value, rtol=1e-3, atol=1e-4)),
        "evaluate_actions has another value than get_value",
    )
    if policy.spec.horizon > 1:  # of whole chunks
        log_prob, entropy = log_prob.sum(1), entropy.sum(1)
    error = _STANDARD_ERRORS * float(log_prob.std()) / _NUM_SAMPLES**0.5 + 1e-3
    surprise, mean_entropy = -float(log_prob.mean()), float(entropy.mean())
    expect(
        abs(surprise - mean_entropy) < error,
        f"the mean of -log_prob over samples of forward is {surprise:.3f}, but the entropy is {mean_entropy:.3f}: "
        "evaluate_actions is for another distribution than forward samples from",
    )
    few = features[:4]
    log_prob, _, value = policy.evaluate_actions(few, drawn[:4])
    _expect_gradient(policy, log_prob.sum(), "the log-density of evaluate_actions")
    _expect_gradient(policy, value.sum(), "the value")


def _expect_gradient(policy: Any, output: Tensor, what: str) -> None:
    parameters = [p for module in policy.components.values() for p in module.parameters() if p.requires_grad]
    reached = output.requires_grad and any(
        gradient is not None and bool(gradient.abs().max() > 0)
        for gradient in torch.autograd.grad(output, parameters, allow_unused=True, retain_graph=True)
    )
    expect(reached, f"{what} has no gradient for any parameter")
