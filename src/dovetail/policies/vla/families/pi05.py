"""pi0.5 (Physical Intelligence, 2025): the state is text in the prompt, in 256 bins."""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.core.types import Array
from dovetail.policies.vla.checkpoints.paligemma_export import pi05_export
from dovetail.policies.vla.checkpoints.paligemma_keys import lerobot_layout, openpi_layout
from dovetail.policies.vla.families.pi0 import CAMERAS, PALIGEMMA
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.images import prepare_images
from dovetail.policies.vla.networks.pi05 import Pi05Network
from dovetail.policies.vla.networks.sizes import Pi05Sizes
from dovetail.policies.vla.prompts import clean_task

__all__ = ["PI05"]

_AFTER_STATE = ";\nAction: "
_BINS = np.linspace(-1.0, 1.0, 257)[:-1]  # lower ends


def _prompt(task: str, state: Array, cleans: bool) -> str:
    """All formats clean the task. A value below -1 is bin -1 and one above 1 is bin 255, as in training."""
    numbers = " ".join(map(str, np.digitize(state, _BINS) - 1))
    return f"Task: {clean_task(task)}, State: {numbers}{_AFTER_STATE}"


PI05 = Family(
    name="pi05",
    network=Pi05Network,
    layouts={
        "LeRobot": partial(lerobot_layout, model=Pi05Sizes),
        "openpi": partial(openpi_layout, model=Pi05Sizes),
    },
    told_by=lambda key: key.endswith("time_mlp_in.weight") and not key.endswith("action_time_mlp_in.weight"),
    mode="QUANTILES",
    steps=frozenset({"pi05_prepare_state_tokenizer_processor_step"}),
    prompt=_prompt,
    after_state=_AFTER_STATE,
    bos="<bos>",
    tokenizer_origin=PALIGEMMA,
    prepare_images=prepare_images,
    cameras=CAMERAS,
    export=pi05_export,
)
