"""An algorithm that runs out of memory when a test says so; apart from `ray_plugins`, which the control process imports."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from support.ray_plugins import taken

__all__ = ["Hungry"]


class HungryConfig(RLPDConfig):
    signs: str


class Hungry(RLPD):
    """`hunger`: the next update wants more memory than there is; `endless hunger`: each does."""

    Config: ClassVar = HungryConfig

    def update(self, batch):
        signs = self._config.signs
        if (Path(signs) / "endless hunger").exists() or taken(signs, "hunger"):
            torch.zeros(1 << 55)
        return super().update(batch)
