"""Which weights of a network a run trains, and how they are published: what stays frozen is only a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import nn

from dovetail.core.bfloat16 import all_finite
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.frozen_base import base_reference, check_base, referenced_base
from dovetail.core.types import Array
from dovetail.policies.arrays import fill_module, stage_module, to_numpy
from dovetail.policies.checkpoints.folder_files import find_file
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.family import FlowNetwork, NetworkPart
from dovetail.policies.vla.lora import Lora
from dovetail.policies.vla.settings import VlaConfig

__all__ = ["BASE", "LORA", "TrainedWeights"]

LORA = "lora"  # the component with the adapters
BASE = "base"  # stands for all published weights, if only adapters are trained


class TrainedWeights:
    """`components` are the networks that a learner sees. With LoRA, that is one component, and the base is frozen."""

    def __init__(
        self,
        network: FlowNetwork,
        checkpoint: Checkpoint,
        config: VlaConfig,
        *,
        seed: int,
        added: Mapping[str, nn.Module],
    ) -> None:
        """`added` are networks beside the published one, which are always trained."""
        self.network = network
        self._checkpoint = checkpoint
        self._digest = ""
        self.lora: Lora | None = None
        self.components: dict[str, nn.Module] = {**network.components}
        self.frozen = {
            "full": {"vision"} if config.freeze_vision else set(),
            "expert": {"vision", "text"},
            "lora": {BASE},
        }[config.train]
        if config.train == "lora":
            self.lora = Lora.add(
                network,
                checkpoint.places,
                pattern=config.lora.targets,
                rank=config.lora.rank,
                alpha=config.lora.alpha,
                seed=seed,
            )
            if config.cache_vision and any("vision" in update for update in self.lora.updates):
                raise UsageError(
                    "policy.cache_vision needs a frozen vision tower, but policy.lora.targets adapt it"
                )
            # a module's name has no dots
            updates = {name.replace(".", "/"): update for name, update in self.lora.updates.items()}
            self.components = {LORA: NetworkPart(updates, network.run_layer)}
        self.components |= added

    def let_learn(self) -> None:
        """Gradients for what is trained. Acting alone needs none."""
        for name, module in self.components.items():
            module.requires_grad_(name not in self.frozen)

    @property
    def digest(self) -> str:
        """Of the folder's weights and its adapter, in whatever precision they are used."""
        if not self._digest:
            paths = list(self._checkpoint.files.paths)
            if self._checkpoint.adapter is not None:
                paths += map(find_file, sorted(self._checkpoint.adapter.folder.glob("*.safetensors")))
            digest = hashlib.sha256()
            for path in paths:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            self._digest = digest.hexdigest()
        return self._digest

    def arrays(self, components: Mapping[str, nn.Module] | None = None) -> dict[str, Mapping[str, Array]]:
        found: dict[str, Mapping[str, Array]] = {name: base_reference(self.digest) for name in sorted(self.frozen)}
        for name, module in (components or self.components).items():
            if name not in self.frozen:
                found[name] = {key: to_numpy(value) for key, value in module.state_dict().items()}
        return found

    def check(self, components: Mapping[str, Mapping[str, Array]], *, misfit: str) -> None:
        """Raise StoreError if published weights do not fit."""
        for name in (*self.frozen, *self.components):
            if name not in components:
                raise StoreError(f"{misfit}component '{name}' is missing")
            digest = referenced_base(components[name])
            if name in self.frozen and digest is not None:
                check_base(digest, self.digest, component=name, misfit=misfit)
            elif name in self.frozen or digest is not None:
                raise StoreError(f"{misfit}they were trained with another policy.train than this one")
            else:
                _check_fit(components[name], self.components[name], name, misfit=misfit)

    def load(self, components: Mapping[str, Mapping[str, Array]]) -> None:
        """After `check`. In place, because CUDA graphs know the addresses of the weights."""
        for name, module in self.components.items():
            if name not in self.frozen:
                fill_module(module, components[name])

    def stage(self, components: Mapping[str, Mapping[str, Array]], device: torch.device) -> Callable[[], None]:
        """After `check`: copy what is trained to the device. The result puts it into use. See `stage_module`."""
        uses = [
            stage_module(module, components[name], device)
            for name, module in self.components.items()
            if name not in self.frozen
        ]

        def use() -> None:
            for use_component in uses:
                use_component()

        return use


def _check_fit(arrays: Mapping[str, Array], module: nn.Module, component: str, *, misfit: str) -> None:
    expected = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    for problem, one, other in (("lacks", expected, arrays), ("has unexpected", arrays, expected)):
        if names := sorted(one.keys() - other.keys()):
            raise StoreError(f"{misfit}component '{component}' {problem} {', '.join(names[:3])}")
    for name, value in arrays.items():
        if value.shape != expected[name]:
            raise StoreError(f"{misfit}{component}/{name} is {value.shape}, should be {expected[name]}")
        if not all_finite(value):
            raise StoreError(f"{misfit}{component}/{name} holds non-finite numbers; not loaded")
