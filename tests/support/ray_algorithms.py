"""An algorithm that runs out of memory on command. Not in `ray_plugins`, which must not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from support.ray_plugins import taken

__all__ = ["RunsOutOfMemory"]


class RunsOutOfMemoryConfig(RLPDConfig):
    signs: str


class RunsOutOfMemory(RLPD):
    """`out of memory`: the next update fails; `always out of memory`: every update fails."""

    Config: ClassVar = RunsOutOfMemoryConfig

    def update(self, batch):
        signs = self._config.signs
        if (Path(signs) / "always out of memory").exists() or taken(signs, "out of memory"):
            torch.zeros(1 << 55)
        return super().update(batch)
