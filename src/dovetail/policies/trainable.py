"""What a learner may ask of a policy, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dovetail.core.contracts import Policy
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

__all__ = ["CachesFeatures", "TrainablePolicy"]


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy with parameters. Actions in torch are normalised: the spec's limits become -1 and 1."""

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """The trainable parts by name: what optimisers train and weights carry."""

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None: ...

    @property
    def num_features(self) -> int: ...

    @property
    def encoder(self) -> nn.ModuleDict:
        """What makes features of images: one of the components, or empty where nothing of that is learned. Critics train
        it, and the actor takes it as it is."""

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        """Normalised observations, [B, F]; masks of keys with history among them, as in `act`. With an `encoder`, as they
        would be with another copy of its own, such as a slow one."""

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Normalised actions [B, A] with gradients, or chunks of them [B, H * A], and their log-density [B]."""

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss that clones normalised actions [B, A], or chunks of them [B, H, A] with a `mask` [B, H]: false
        where there is nothing to clone, and then it does not matter what stands there. What chance it needs comes
        from `generator`."""

    def normalize_actions(self, actions: Tensor) -> Tensor: ...

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        """Everything an actor needs to act like this policy, or as it would with other `components`."""


@runtime_checkable
class CachesFeatures(Protocol):
    """A policy that looks through a frozen encoder: replay may hold what that gives, so that no frame is encoded for
    every batch that it is in. Its `features` takes either."""

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        """What there is to keep in the place of each camera's images; empty: nothing."""

    @property
    def feature_digest(self) -> str:
        """Another one means that what was kept is worth nothing."""

    def encode(self, key: str, frames: Array) -> Array:
        """Images [N, H, W, C] of a camera to what is kept of each, [N, ...]."""
