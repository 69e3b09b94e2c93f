"""The device of a learner's networks."""

from __future__ import annotations

import torch

from dovetail.policies.trainable import TrainablePolicy

__all__ = ["device_of"]


def device_of(policy: TrainablePolicy) -> torch.device:
    """The device of a policy's networks."""
    return next(p.device for module in policy.components.values() for p in module.parameters())
