"""Labelers in a process of their own, so that a slow one, or one that dies, is nobody else's affair."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dovetail.config.schema import RunConfig
from dovetail.core.types import Episode
from dovetail.labels.panel import Hearing, Panel
from dovetail.runs.assembly.build import build_panel
from dovetail.runtime.ray.roles.role import Role

__all__ = ["LabelerRole"]


class LabelerRole(Role):
    def __init__(self, name: str, *, config: dict[str, Any], labels: Path) -> None:
        """`labels` is where the run keeps them: who keeps something beside them does so where that is in reach."""
        super().__init__(name)
        self._config, self._labels = config, labels
        self._panel: Panel | None = None
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Make whoever is asked ready, once."""
        with self._making:
            if self._panel is None:
                with self.working("starting"):
                    folder = self._labels if self._labels.parent.is_dir() else None
                    self._panel = build_panel(RunConfig.model_validate(self._config), folder)

    def hear(self, episode: Episode, hearing: Hearing) -> Hearing:
        self.prepare()
        assert self._panel is not None
        with self.working("labelling"):
            self.count("episodes")
            return self._panel.go_on(episode, hearing)
