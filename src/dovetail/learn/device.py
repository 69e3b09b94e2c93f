"""Choose the device for the learner's networks, batches and random numbers."""

from __future__ import annotations

import torch

from dovetail.core.errors import UsageError
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["device_of", "find_device"]


def find_device(name: str) -> torch.device:
    """Return `cpu`, `cuda` or `cuda:1`; for `auto`, a GPU if there is one. Raise UsageError for a missing GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if (device.index or 0) >= count:
            raise UsageError(
                f"device is '{name}', but torch finds {count or 'no'} GPUs. Set device=cpu or device=auto"
            )
    return device


def device_of(policy: TrainablePolicy) -> torch.device:
    """The device of a policy's networks."""
    return next(p.device for module in policy.components.values() for p in module.parameters())
