"""What a folder with published weights says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.checkpoints.adapters import Adapter
from dovetail.policies.vla.checkpoints.load import load_network
from dovetail.policies.vla.family import Family, FlowNetwork, Format, Layout
from dovetail.policies.vla.lora import Place
from dovetail.policies.vla.networks.sizes import VlaSizes

__all__ = ["Checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    folder: Path
    family: Family
    format: Format
    layout: Layout
    files: WeightFiles
    cameras: tuple[str, ...]
    max_absent_cameras: int | None = None  # None: any number may be absent
    state_mode: str
    action_mode: str
    state: Normalization | None = None  # None: the folder has no statistics
    action: Normalization | None = None
    resizes_with_pil: bool = False  # on uint8, as openpi; otherwise on floats, as LeRobot
    cleans_prompt: bool = False  # openpi replaces `_` and newlines
    relative_actions: bool = False  # action minus state
    relative_exclude: tuple[str, ...] = ()  # parts of names of axes that stay absolute
    action_names: tuple[str, ...] = ()
    adapter: Adapter | None = None
    assets: tuple[str, ...] = ()  # openpi: files with statistics of several robots, of which one must be chosen

    @property
    def sizes(self) -> VlaSizes:
        sizes: VlaSizes = self.layout.sizes
        return sizes

    def tensor(self, key: str) -> Tensor:
        """A published tensor as it is in the files."""
        ((_, value),) = self.files.read([key])
        return value

    @property
    def places(self) -> dict[str, Place]:
        """Where each published tensor is in the network."""
        found = {}
        for parameter, keys in self.layout.sources.items():
            first = 0
            for key in keys:
                num = self.files.shapes[key][0]
                found[key] = Place(parameter, first, num)
                first += num
        return found

    def load(self, *, device: torch.device, dtype: torch.dtype) -> FlowNetwork:
        """The network, with the adapter merged into it."""
        network = load_network(
            self.files, self.layout, self.family, name=str(self.folder), device=device, dtype=dtype
        )
        if self.adapter is not None:
            self.adapter.apply(network, self.places).merge()
        return network.requires_grad_(False)
