"""Our tasks in Gymnasium's registry, by name only: nothing of them is loaded before one is made.

Since 1.0 Gymnasium looks for no entry points, so `import dovetail` does the registering.
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
    """Make the environments known to Gymnasium. A second call changes nothing."""
    for env_id, task in ENVS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point="dovetail.envs.gym_env:DovetailEnv", kwargs={"task": task})
