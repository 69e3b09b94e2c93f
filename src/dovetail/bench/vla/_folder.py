"""A folder with pi0 of random weights in transformers' layout, with statistics and a tokenizer, for policy `pi0` to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from dovetail.policies.vla.checkpoints.keys import parameter_sources
from dovetail.policies.vla.checkpoints.transformers_folder import KEYS
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes

__all__ = ["config_values", "published_sources", "published_tensors", "write_folder"]

_WORDS = ("<pad>", "<eos>", "<bos>", "<unk>", "\n", " ", "push", "the", "cube", "to", "mark")


def write_folder(folder: Path, network: PaliGemmaNetwork, *, num_state: int, num_actions: int) -> None:
    """Statistics are those of standard normal values."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "pi0", **config_values(network.sizes)}
    (folder / "config.json").write_text(json.dumps(config))
    stats = {
        key: {"mean": [0.0] * size, "std": [1.0] * size}
        for key, size in (("observation.state", num_state), ("action", num_actions))
    }
    (folder / "stats.json").write_text(json.dumps(stats))
    tensors = {key: tensor.contiguous() for key, tensor in published_tensors(network).items()}
    save_file(tensors, folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" |\n"), behavior="isolated")
    tokenizer.save(str(folder / "tokenizer.json"))


def published_tensors(network: PaliGemmaNetwork) -> dict[str, Tensor]:
    """The parameters under transformers' names; those that we join are split again."""
    ours = dict(network.named_parameters())
    found: dict[str, Tensor] = {}
    for name, sources in published_sources(network).items():
        tensor, first = ours[name].detach(), 0
        for key, num_rows in sources:
            found[key] = tensor.narrow(0, first, num_rows)
            first += num_rows
    return found


def published_sources(network: PaliGemmaNetwork) -> dict[str, list[tuple[str, int]]]:
    """Parameter: transformers' names of its parts, with their numbers of rows."""
    lengths = {name: len(parameter) for name, parameter in network.named_parameters()}
    return {
        name: list(zip(keys, _num_rows(name, lengths[name], len(keys), network.sizes), strict=True))
        for name, keys in parameter_sources(network.sizes, KEYS).items()
    }


def _num_rows(name: str, total: int, num_parts: int, sizes: Pi0Sizes) -> list[int]:
    if ".qkv." in name and not name.startswith("vision."):
        of = sizes.text if name.startswith("text_layers.") else sizes.expert
        keys = of.num_kv_heads * of.head_size
        return [total - 2 * keys, keys, keys]
    return [total // num_parts] * num_parts


def config_values(sizes: Pi0Sizes) -> dict[str, Any]:
    """The arguments of transformers' PI0Config for these sizes."""
    vision = sizes.vision
    vlm = {
        "model_type": "paligemma",
        "text_config": _gemma(sizes.text, sizes),
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": vision.width,
            "intermediate_size": vision.mlp_width,
            "num_hidden_layers": vision.num_layers,
            "num_attention_heads": vision.num_heads,
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "projection_dim": sizes.text.width,
            "vision_use_head": False,
        },
        "projection_dim": sizes.text.width,
        "image_token_id": sizes.vocabulary,
    }
    return {
        "vlm_config": vlm,
        "dit_config": _gemma(sizes.expert, sizes),
        "chunk_size": sizes.horizon,
        "max_state_dim": sizes.state_size,
        "max_action_dim": sizes.action_size,
        "num_inference_steps": sizes.num_flow_steps,
        "min_period": sizes.min_period,
        "max_period": sizes.max_period,
    }


def _gemma(of: GemmaSizes, sizes: Pi0Sizes) -> dict[str, Any]:
    return {
        "model_type": "gemma",
        "hidden_size": of.width,
        "num_hidden_layers": of.num_layers,
        "intermediate_size": of.mlp_width,
        "num_attention_heads": of.num_heads,
        "num_key_value_heads": of.num_kv_heads,
        "head_dim": of.head_size,
        "vocab_size": sizes.vocabulary,
    }
