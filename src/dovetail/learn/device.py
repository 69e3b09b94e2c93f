"""Where a learner computes: one setting for its networks, batches and random numbers."""

from __future__ import annotations

import torch

from dovetail.core.errors import UsageError
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["device_of", "find_device"]


def find_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU where there is one. Refused where it is not there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if (device.index or 0) >= count:
            have = f"there are {count}" if count else "torch finds none here"
            raise UsageError(f"device is '{name}', but of GPUs {have}: set device=cpu, or device=auto")
    return device


def device_of(policy: TrainablePolicy) -> torch.device:
    """Where a policy's networks are."""
    return next(p.device for module in policy.components.values() for p in module.parameters())
