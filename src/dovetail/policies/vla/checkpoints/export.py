"""Any published folder to a LeRobot folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.checkpoints.lerobot_writer import write_lerobot

__all__ = ["export_checkpoint"]


def export_checkpoint(
    source: Path, folder: Path, *, stats: Path | None = None, adapter: Path | None = None
) -> None:
    """An adapter is merged, in float32, and its weights are rounded to the dtype that they had."""
    checkpoint = open_checkpoint(source, stats=stats, adapter=adapter)
    changed: dict[str, Tensor] = {}
    if checkpoint.adapter is not None:
        network = checkpoint.load(device=torch.device("cpu"), dtype=torch.float32)
        places = checkpoint.places
        for name in (*checkpoint.adapter.pairs, *checkpoint.adapter.whole):
            key = checkpoint.adapter.place(name, places).parameter
            (first, *_) = checkpoint.layout.sources[key]
            changed[key] = network.get_parameter(key).to(checkpoint.tensor(first).dtype)
    write_lerobot(folder, checkpoint, changed=changed)
