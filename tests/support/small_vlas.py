"""A small folder of each family of VLA, for tests of what holds for every VLA: random weights, no statistics of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from dovetail.core.specs import RobotSpec
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.settings import (
    Pi0Config,
    Pi05Config,
    SmolVLAConfig,
    ValuedPi0Config,
    ValuedPi05Config,
    ValuedSmolVLAConfig,
    VlaConfig,
)
from dovetail.policies.vla.smolvla_policy import SmolVLAPolicy
from dovetail.policies.vla.valued_policy import ValuedPi0Policy, ValuedPi05Policy, ValuedSmolVLAPolicy
from support.smolvla_folders import RECORDED, published_weights

STATS = "stats.json"  # for `policy.stats`
_WORDS = ("push", "the", "red", "blue", "cube", "to", "mark", ",", "advantage", ":", "positive", "negative", "a")


@dataclass(frozen=True)
class SmallVla:
    """`camera` is the one that the tests map to the robot's camera `front`."""

    name: str
    policy: type[VlaPolicy]
    config: type[VlaConfig]
    valued: type[VlaPolicy]
    valued_config: type[VlaConfig]
    camera: str

    def make(self, folder: Path, *, robot: RobotSpec, seed: int = 3, valued: bool = False, **settings: Any) -> Any:
        """A policy on a CPU that looks at camera `front`, with the statistics beside the weights if there are any."""
        given: dict[str, Any] = {"images": {self.camera: "front"}, "device": "cpu", **settings}
        if not given.get("fit_stats") and (folder / STATS).exists():
            given.setdefault("stats", str(folder / STATS))
        config, policy = (self.valued_config, self.valued) if valued else (self.config, self.policy)
        return policy(config(checkpoint=str(folder), **given), robot=robot, seed=seed)


SMALL_VLAS = {
    "pi0": SmallVla("pi0", Pi0Policy, Pi0Config, ValuedPi0Policy, ValuedPi0Config, "base_0_rgb"),
    "pi05": SmallVla("pi05", Pi05Policy, Pi05Config, ValuedPi05Policy, ValuedPi05Config, "base_0_rgb"),
    "smolvla": SmallVla("smolvla", SmolVLAPolicy, SmolVLAConfig, ValuedSmolVLAPolicy, ValuedSmolVLAConfig, "top"),
}


def write_small_vla(name: str, folder: Path, *, horizon: int = 5, stats: tuple[int, int] | None = None) -> Path:
    """The folder of a family; with `stats`, statistics of so many state and action axes beside the weights."""
    if name == "smolvla":
        _write_smolvla(folder, horizon=horizon)
    else:
        write_new_model(folder, SMALL_VLAS[name].policy.family, horizon=horizon)
    if stats is not None:
        keys = zip(("observation.state", "action"), stats, (1.0, 0.01), strict=True)
        numbers = {key: _statistics(num, scale) for key, num, scale in keys}
        (folder / STATS).write_text(json.dumps(numbers))
    return folder


def _statistics(num: int, scale: float) -> dict[str, list[float]]:
    """Every value differs."""
    mean, std = scale * np.linspace(-0.2, 0.3, num), scale * np.linspace(0.5, 1.5, num)
    values = {"mean": mean, "std": std, "q01": mean - 2.3 * std, "q99": mean + 2.3 * std}
    return {name: value.tolist() for name, value in values.items()}


def _write_smolvla(folder: Path, *, horizon: int) -> None:
    """The recorded layout, with one camera, more words and no processors."""
    folder.mkdir(parents=True)
    config = json.loads((RECORDED / "config.json").read_text())
    config |= {"chunk_size": horizon, "n_action_steps": horizon, "tokenizer_max_length": 24}
    config |= {"input_features": {"observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]}}}
    config |= {"output_features": {}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(published_weights(), folder / "model.safetensors")
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "\n", " ", *_WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[ \n,:]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
