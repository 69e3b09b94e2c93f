"""Statistics of states and actions from demonstrations, for a robot that the published weights do not know. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail.core.errors import SpecMismatch, StoreError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.policies.checkpoints.normalization import MODES, Normalization
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.settings import VlaConfig

__all__ = ["compute_statistics", "from_arrays", "to_arrays", "without_statistics"]

_MIN_STD = 1e-3  # an axis that does not move in the demonstrations


def without_statistics(checkpoint: Checkpoint, config: VlaConfig, robot: RobotSpec) -> Checkpoint:
    """The checkpoint with placeholders of the robot's sizes. They are not finite: acting before a fit gives no numbers."""
    if config.stats is not None:
        raise UsageError("policy.fit_stats computes what policy.stats would read. Remove one of them")
    if config.relative_axes or (config.relative_axes is None and checkpoint.relative_actions):
        raise UsageError(
            "policy.fit_stats knows single actions, but relative ones depend on the chunk. Set policy.stats instead"
        )
    low_dim = {k: s.shape[0] for k, s in robot.observation.items() if s.dtype == "float32" and len(s.shape) == 1}
    keys = config.state or tuple(low_dim)
    num_state = len(config.state_axes) or sum(low_dim.get(key, 0) for key in keys)
    num_action = robot.action.shape[0]
    if num_state > checkpoint.sizes.state_size or num_action > checkpoint.sizes.action_size:
        raise SpecMismatch(
            f"robot '{robot.name}' has {num_state} state and {num_action} action axes, but {checkpoint.folder} takes at "
            f"most {checkpoint.sizes.state_size} and {checkpoint.sizes.action_size}. Choose fewer with policy.state"
        )
    return replace(
        checkpoint,
        state=_unknown(num_state, checkpoint.state_mode),
        action=_unknown(num_action, checkpoint.action_mode),
    )


def compute_statistics(values: Array) -> dict[str, Array]:
    """All that a mode may need, from [N, D]."""
    wide = np.asarray(values, np.float64)
    quantiles = {"min": 0.0, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99, "max": 1.0}
    found = {name: np.quantile(wide, share, axis=0) for name, share in quantiles.items()}
    found |= {"mean": wide.mean(0), "std": np.maximum(wide.std(0), _MIN_STD)}
    return {name: value.astype(np.float32) for name, value in found.items()}


def to_arrays(state: Normalization, action: Normalization) -> dict[str, Array]:
    """The statistics as one component of the weights."""
    return {
        f"{name}.{statistic}": value
        for name, of in (("state", state), ("action", action))
        for statistic, value in of.statistics.items()
    }


def from_arrays(arrays: Mapping[str, Array], checkpoint: Checkpoint) -> tuple[Normalization, Normalization]:
    """Raise StoreError if they are not those of this checkpoint's modes."""
    found = []
    for name, mode in (("state", checkpoint.state_mode), ("action", checkpoint.action_mode)):
        missing = [statistic for statistic in MODES[mode] if f"{name}.{statistic}" not in arrays]
        if missing:
            raise StoreError(f"the statistics lack {name}.{missing[0]}, which normalization {mode} needs")
        found.append(_normalization(mode, {s: arrays[f"{name}.{s}"] for s in MODES[mode]}, checkpoint, name))
    return found[0], found[1]


def _normalization(mode: str, statistics: Mapping[str, Array], checkpoint: Checkpoint, name: str) -> Normalization:
    if mode == "IDENTITY":
        raise UsageError(f"{checkpoint.folder} does not normalize its {name}, so there is nothing to fit")
    if checkpoint.format == "openpi":
        return Normalization.openpi(mode, statistics, name=name)
    return Normalization.lerobot(mode, statistics, name=name)


def _unknown(size: int, mode: str) -> Normalization:
    nan = np.full(size, np.nan, np.float32)
    return Normalization(
        shift=nan, scale=nan, back_scale=nan, mode=mode, statistics=dict.fromkeys(MODES[mode], nan)
    )
