"""The notice board of a run: what its roles are doing, for whoever asks the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NoticeRole"]


class NoticeRole:
    """The driver tells; anybody may ask."""

    def __init__(self) -> None:
        self._newest: Mapping[str, Any] = {}

    def tell(self, facts: Mapping[str, Any]) -> None:
        self._newest = facts

    def report(self) -> Mapping[str, Any]:
        return self._newest
