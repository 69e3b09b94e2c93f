"""Registers the tasks as Gymnasium environments by name. `gymnasium.make` loads them.

Gymnasium 1.0 does not search entry points, so `import dovetail` registers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import gymnasium

__all__ = ["ENVS", "register"]

ENVS: Mapping[str, str] = MappingProxyType(
    {
        "dovetail/PushCube-v0": "push_cube",
        "dovetail/PegInsertion-v0": "peg_insertion",
        "dovetail/Charger-v0": "charger",
        "dovetail/PickPlace-v0": "pick_place",
        "dovetail/CapTightening-v0": "cap_tightening",
        "dovetail/TableCleanup-v0": "table_cleanup",
    }
)


def register() -> None:
    """Register the environments. A second call changes nothing."""
    for env_id, task in ENVS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point="dovetail.envs.gym_env:DovetailEnv", kwargs={"task": task})
