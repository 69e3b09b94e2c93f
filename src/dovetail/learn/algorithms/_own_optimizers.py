"""`learner.optimizers` for soft actor-critics, which have one optimizer per network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dovetail.core.errors import UsageError
from dovetail.learn.adam import Optimizers
from dovetail.learn.algorithms.settings import CriticConfig, SACFamilyConfig
from dovetail.learn.schedules import OptimizerSettings

__all__ = ["OwnOptimizers"]


class OwnOptimizers:
    """For a SoftActorCritic: see SetsOptimizers. Names are those of its networks: `critic`, `actor`, `encoder`."""

    name: ClassVar[str]
    _config: CriticConfig
    _optimizers: Optimizers

    def set_optimizers(self, optimizers: Mapping[str, OptimizerSettings]) -> None:
        if isinstance(self._config, SACFamilyConfig) and self._config.cuda_graphs:
            raise UsageError(
                "algorithm.cuda_graphs records the learning rates once, but learner.optimizers may change them. Set "
                "algorithm.cuda_graphs=false"
            )
        self._optimizers.configure(optimizers, algorithm=self.name)
