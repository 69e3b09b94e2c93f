"""Name of the folder of a run with the components that its policy started from. Loads nothing else."""

from __future__ import annotations

__all__ = ["COMPONENTS"]

COMPONENTS = "parts"
