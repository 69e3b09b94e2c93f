"""Registers the tasks as Gymnasium environments by name. `gymnasium.make` loads them.

Gymnasium 1.0 does not search entry points, so `import dovetail` registers them. It does not import Gymnasium for that,
because `dovetail stop` must start fast: if Gymnasium is imported later, they are registered then.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType

__all__ = ["ENVS", "register"]

ENVS: Mapping[str, str] = MappingProxyType(
    {
        "dovetail/PushCube-v0": "push_cube",
        "dovetail/PushByPrompt-v0": "push_by_prompt",
        "dovetail/PegInsertion-v0": "peg_insertion",
        "dovetail/Charger-v0": "charger",
        "dovetail/PickPlace-v0": "pick_place",
        "dovetail/CapTightening-v0": "cap_tightening",
        "dovetail/TableCleanup-v0": "table_cleanup",
    }
)


def register() -> None:
    """Register the environments, now or when Gymnasium is imported. A second call changes nothing."""
    if "gymnasium" in sys.modules:
        _register()
    elif not any(isinstance(finder, _GymnasiumFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumFinder())


def _register() -> None:
    import gymnasium

    for env_id, task in ENVS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point="dovetail.envs.gym_env:DovetailEnv", kwargs={"task": task})


class _GymnasiumFinder:
    """Finds Gymnasium as usual, once, and registers the environments after its import. See `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
