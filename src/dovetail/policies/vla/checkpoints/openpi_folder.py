"""openpi's checkpoints, converted to PyTorch: config.json, model.safetensors, assets/ASSET_ID/norm_stats.json.

The folder does not tell whether actions are relative to the state: `policy.relative_axes` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.policies.checkpoints.folder_files import read_json
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.statistics import openpi_statistics
from dovetail.policies.vla.family import Family

__all__ = ["open_folder"]


def open_folder(folder: Path, config: Mapping[str, Any], files: WeightFiles, family: Family) -> Checkpoint:
    state, action = None, None
    # a link could lead to a folder of any size
    assets = [] if (folder / "assets").is_symlink() else sorted((folder / "assets").glob("**/norm_stats.json"))
    if len(assets) == 1:
        data = read_json(assets[0], root=folder)
        state, action = openpi_statistics(data, family.mode, name=str(assets[0]))
    return Checkpoint(
        folder=folder,
        family=family,
        format="openpi",
        layout=family.layouts["openpi"](folder, config, files.shapes),
        files=files,
        cameras=family.cameras,
        state=state,
        action=action,
        state_mode=family.mode,
        action_mode=family.mode,
        resizes_with_pil=True,
        cleans_prompt=True,
        assets=tuple(str(path.relative_to(folder)) for path in assets),
    )
