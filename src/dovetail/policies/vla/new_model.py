"""A small pi0 or pi0.5 with RANDOM weights, as a LeRobot folder: to try training without a published checkpoint.

    write_new_model(Path("tiny_pi0"), PI0, horizon=8, num_actions=7, seed=0)

About 1 million weights (`size="small"`: 20 million), images of 64 x 64 pixels. The folder has no statistics: a run computes
them (`policy.fit_stats`).

Published models pad actions to 32 axes, and the loss leaves the padding out. Random weights would move the padding in
directions that training never showed, which costs success. So a new model has the robot's number of axes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.policies.vla.checkpoints.keys import parameter_sources
from dovetail.policies.vla.checkpoints.paligemma_keys import shared_keys
from dovetail.policies.vla.family import Family, FlowNetwork
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes, VisionSizes
from dovetail.policies.vla.settings import NewModelConfig

__all__ = ["cached_new_model", "write_new_model"]

_SIZES = {"pi0": Pi0Sizes, "pi05": Pi05Sizes}
_NUM_PROMPT_TOKENS = {"pi0": 24, "pi05": 120}  # pi05 has the state in its prompt
_VOCABULARY = 512
_LAYOUT = 3  # of the sizes and tokens below: a folder of another layout in the cache is not used
_NETWORKS = {  # the vision tower, and the text model, which the expert equals
    # shapes do not tell the heads of the vision tower, and every PaliGemma has 16
    "tiny": (
        VisionSizes(width=64, num_layers=2, num_heads=16, mlp_width=128, image_size=64, patch_size=32),
        GemmaSizes(width=96, num_layers=4, num_heads=4, num_kv_heads=1, head_size=32, mlp_width=256),
    ),
    "small": (
        VisionSizes(width=192, num_layers=4, num_heads=16, mlp_width=768, image_size=64, patch_size=8),
        GemmaSizes(width=384, num_layers=6, num_heads=6, num_kv_heads=1, head_size=64, mlp_width=1024),
    ),
}
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
_TEXTS = (  # common words of prompts become one token each; all others are spelled
    "push the red cube to the mark",
    "push the blue cube to the mark",
    "pick up the green cube and place it on the plate",
    "insert the peg into the hole",
    "put the yellow block in the box",
    "open the drawer",
    "close the gripper on the left handle",
    "open the drawer, advantage: positive",  # of algorithm recap
    "open the drawer, advantage: negative",
    "Task: move the right arm, State: 0 1 2 3 4 5 6 7 8 9;\nAction: ",
)


def cached_new_model(family: Family, config: NewModelConfig, *, num_actions: int) -> Path:
    """The folder of these settings in the user's cache. It is made if it does not exist: the seed decides the weights."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "new_models"
    sizes = f"{config.size}{_LAYOUT}-horizon{config.horizon}-actions{num_actions}"
    folder = root / f"{family.name}-{sizes}-seed{config.seed}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            made = Path(scratch) / "model"
            write_new_model(
                made, family, size=config.size, horizon=config.horizon, num_actions=num_actions, seed=config.seed
            )
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return folder


def write_new_model(
    folder: Path,
    family: Family,
    *,
    size: Literal["tiny", "small"] = "tiny",
    horizon: int = 8,
    num_actions: int = 32,
    seed: int = 0,
) -> int:
    """Write the folder; return the number of weights. Raise UsageError if it exists or the family has no small version."""
    if folder.exists():
        raise UsageError(f"{folder} exists already. Name a new folder")
    if family.name not in _SIZES:
        raise UsageError(f"there is no small '{family.name}'. Use {' or '.join(_SIZES)}")
    sizes = _sizes(family.name, size, horizon, num_actions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = family.network(sizes)
        _initialize(network)
    folder.mkdir(parents=True)
    _write_tokenizer(folder)
    config = _config(family, sizes)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(dict(_published(network, sizes)), folder / "model.safetensors", metadata={"format": "pt"})
    return sum(parameter.numel() for parameter in network.parameters())


def _sizes(name: str, size: Literal["tiny", "small"], horizon: int, num_actions: int) -> Pi0Sizes:
    vision, layers = _NETWORKS[size]
    return _SIZES[name](
        vision=vision,
        text=layers,
        expert=layers,
        vocabulary=_VOCABULARY,
        num_prompt_tokens=_NUM_PROMPT_TOKENS[name],
        state_size=64,
        horizon=horizon,
        action_size=num_actions,
    )


@torch.no_grad()
def _initialize(network: FlowNetwork) -> None:
    """torch's own values, except for embeddings, which are multiplied by the square root of the width later."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, module.embedding_dim**-0.5)
        elif name == "vision":
            module.get_parameter("position").normal_(0.0, 0.1)


def _published(network: FlowNetwork, sizes: Pi0Sizes) -> Iterator[tuple[str, Tensor]]:
    parameters = dict(network.named_parameters())
    inner = "model.paligemma_with_expert.paligemma.model."
    for ours, names in parameter_sources(sizes, shared_keys({inner: ()}, prefix="model.")).items():
        value = parameters[ours].detach()
        rows = [len(value) // len(names)] * len(names)
        if ".qkv." in ours and not ours.startswith("vision."):
            keys = sizes.text.num_kv_heads * sizes.text.head_size
            rows = [len(value) - 2 * keys, keys, keys]
        first = 0
        for name, num in zip(names, rows, strict=True):
            yield name, value[first : first + num].clone()
            first += num


def _config(family: Family, sizes: Pi0Sizes) -> dict[str, object]:
    size = sizes.image_size
    images = {
        f"observation.images.{camera}": {"type": "VISUAL", "shape": [3, size, size]} for camera in family.cameras
    }
    return {
        "type": family.name,
        "n_obs_steps": 1,
        "input_features": images,
        "output_features": {},
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": family.mode, "ACTION": family.mode},
        "chunk_size": sizes.horizon,
        "n_action_steps": sizes.horizon,
        "max_state_dim": sizes.state_size,
        "max_action_dim": sizes.action_size,
        "tokenizer_max_length": sizes.num_prompt_tokens,
        "num_inference_steps": sizes.num_flow_steps,
    }


def _write_tokenizer(folder: Path) -> None:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise UsageError("prompts need the package 'tokenizers': pip install 'dovetail[vlm]'") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        min_frequency=1,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
