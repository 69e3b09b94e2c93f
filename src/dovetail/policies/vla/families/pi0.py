"""pi0 (Black et al., 2024): the state is a token of the expert, the prompt is the task and a newline."""

from __future__ import annotations

from dovetail.core.types import Array
from dovetail.policies.vla.checkpoints.paligemma_export import pi0_export
from dovetail.policies.vla.checkpoints.paligemma_keys import lerobot_layout, openpi_layout
from dovetail.policies.vla.checkpoints.transformers_folder import transformers_layout
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.images import prepare_images
from dovetail.policies.vla.networks.pi0 import Pi0Network
from dovetail.policies.vla.prompts import clean_task

__all__ = ["CAMERAS", "PALIGEMMA", "PI0"]

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # of pi0's training
PALIGEMMA = "google/paligemma-3b-pt-224"


def _prompt(task: str, state: Array, cleans: bool) -> str:
    text = clean_task(task) if cleans else task
    return text if text.endswith("\n") else f"{text}\n"


PI0 = Family(
    name="pi0",
    network=Pi0Network,
    layouts={"LeRobot": lerobot_layout, "transformers": transformers_layout, "openpi": openpi_layout},
    told_by=lambda key: key.endswith("action_time_mlp_in.weight") and "vlm_with_expert." not in key,
    mode="MEAN_STD",
    steps=frozenset({"pi0_new_line_processor"}),
    prompt=_prompt,
    bos="<bos>",
    tokenizer_origin=PALIGEMMA,
    prepare_images=prepare_images,
    cameras=CAMERAS,
    export=pi0_export,
)
