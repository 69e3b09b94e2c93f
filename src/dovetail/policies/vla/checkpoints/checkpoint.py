"""What a folder with a published pi0 says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dovetail.policies.vla.checkpoints.keys import KeyLayout
from dovetail.policies.vla.checkpoints.load import load_network
from dovetail.policies.vla.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.normalization import Normalization
from dovetail.policies.vla.pi0_network import Pi0Network
from dovetail.policies.vla.sizes import Pi0Sizes

__all__ = ["CAMERAS", "Checkpoint"]

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # of pi0's training


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    folder: Path
    family: Literal["LeRobot", "transformers", "openpi"]
    sizes: Pi0Sizes
    keys: KeyLayout
    files: WeightFiles
    cameras: tuple[str, ...] = CAMERAS
    state: Normalization | None = None  # None: the folder has no statistics
    action: Normalization | None = None
    state_mode: str = "MEAN_STD"
    action_mode: str = "MEAN_STD"
    resizes_with_pil: bool = False  # on uint8, as openpi; otherwise on floats, as LeRobot
    cleans_prompt: bool = False  # openpi replaces `_` and newlines
    relative_actions: bool = False  # action minus state
    relative_exclude: tuple[str, ...] = ()  # parts of names of axes that stay absolute
    action_names: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()  # openpi: files with statistics of several robots, of which one must be chosen

    def load(self, *, device: torch.device, dtype: torch.dtype) -> Pi0Network:
        return load_network(self.files, self.keys, self.sizes, name=str(self.folder), device=device, dtype=dtype)
