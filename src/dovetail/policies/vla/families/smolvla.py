"""SmolVLA (Shukor et al., 2025): the state is a token of the prefix, the prompt is the task and a newline. LeRobot only."""

from __future__ import annotations

from dovetail.core.types import Array
from dovetail.policies.vla.checkpoints.smolvla_export import smolvla_export
from dovetail.policies.vla.checkpoints.smolvla_keys import lerobot_layout
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.images import prepare_images_in_corner
from dovetail.policies.vla.networks.smolvla import SmolVLANetwork

__all__ = ["SMOLVLA"]


def _prompt(task: str, state: Array, cleans: bool) -> str:
    return task if task.endswith("\n") else f"{task}\n"


SMOLVLA = Family(
    name="smolvla",
    network=SmolVLANetwork,
    layouts={"LeRobot": lerobot_layout},
    told_by=lambda key: "vlm_with_expert.lm_expert." in key,
    mode="MEAN_STD",
    steps=frozenset({"smolvla_new_line_processor"}),
    prompt=_prompt,
    bos=None,
    tokenizer_origin="HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    prepare_images=prepare_images_in_corner,
    cameras=(),
    export=smolvla_export,
    masks_any_camera=False,
)
