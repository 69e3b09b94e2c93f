"""Slow labelers in their own process, so that one that hangs or dies stops nothing else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dovetail.config.schema import RunConfig
from dovetail.core.types import Episode
from dovetail.labels.chain import ChainState, LabelerChain
from dovetail.runs.assembly.build import build_labeler_chain
from dovetail.runtime.ray.roles.role import Role

__all__ = ["LabelerRole"]


class LabelerRole(Role):
    """`labels` is the run's folder of labels, where labelers may store files if this machine can reach it."""

    def __init__(self, name: str, *, config: dict[str, Any], labels: Path) -> None:
        super().__init__(name)
        self._config, self._labels = config, labels
        self._chain: LabelerChain | None = None
        self._building = threading.Lock()

    def prepare(self) -> None:
        """Build the labelers, once."""
        with self._building:
            if self._chain is None:
                with self.working("starting"):
                    folder = self._labels if self._labels.parent.is_dir() else None
                    self._chain = build_labeler_chain(RunConfig.model_validate(self._config), folder)

    def label(self, episode: Episode, chain_state: ChainState) -> ChainState:
        self.prepare()
        assert self._chain is not None
        with self.working("labelling"):
            self.count("episodes")
            return self._chain.resume(episode, chain_state)
