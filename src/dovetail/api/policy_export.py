"""A policy that a run trained as a folder that others load: LeRobot's, or PEFT's with LoRA only."""

from __future__ import annotations

from pathlib import Path

from dovetail.api.policy import load_policy
from dovetail.api.weights import WeightSource
from dovetail.core.errors import UsageError
from dovetail.policies.vla.policy import VlaPolicy

__all__ = ["export_run"]


def export_run(source: WeightSource, folder: Path, *, lora: bool = False) -> Path:
    """Write the newest weights of a run, or those that `source` names; return the file with the weights. Raise UsageError if
    the run has another policy, or with `lora` if it trains no adapters."""
    policy = load_policy(source).policy
    if not isinstance(policy, VlaPolicy):
        raise UsageError(
            f"run {source.folder.path} has policy '{policy.spec.name}'. Only pi0, pi05 and smolvla become LeRobot folders"
        )
    if lora:
        policy.export_lora(folder)
        return folder / "adapter_model.safetensors"
    policy.export(folder)
    return folder / "model.safetensors"
