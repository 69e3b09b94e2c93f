"""Algorithms that run out of memory or save slowly on command. Not in `ray_plugins`, which must not import torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import torch

from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from support.ray_plugins import taken

__all__ = ["RunsOutOfMemory", "SavesSlowly"]


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


class SavesSlowly(RunsOutOfMemory):
    """`save slowly`: the next state to be saved is ready when there is the sign `save`, as if it were many gigabytes."""

    def state_dict(self):
        signs = Path(self._config.signs)
        if taken(str(signs), "save slowly"):
            while not (signs / "save").exists():
                time.sleep(0.05)
        return super().state_dict()
