"""Choose the device of networks, batches and random numbers."""

from __future__ import annotations

import torch

from dovetail.core.errors import UsageError

__all__ = ["find_device"]


def find_device(name: str, *, setting: str = "device") -> torch.device:
    """Return `cpu`, `cuda` or `cuda:1`; for `auto`, a GPU if there is one. Raise UsageError for a missing GPU; the message
    names the setting."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if (device.index or 0) >= count:
            raise UsageError(
                f"{setting} is '{name}', but torch finds {count or 'no'} GPUs. Set {setting}=cpu or {setting}=auto"
            )
    return device
