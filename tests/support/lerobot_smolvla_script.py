"""Run in the environment of `scripts/lerobot-env`: a small SmolVLA of the real package, on numbers that tests can repeat.

python lerobot_smolvla_script.py record FOLDER             saves a policy, and what it computed (scripts/record-smolvla)
python lerobot_smolvla_script.py act FOLDER OUT.safetensors    loads a policy, and writes what it computes

The weights are a function of their names (`hashed_numbers.py`), so `record` writes names and shapes instead of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import dovetail_lerobot_env  # noqa: F401  # before torchvision
import torch
from hashed_numbers import hashed, hashed_frames, hashed_weights
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.pi0.modeling_pi0 import resize_with_pad_torch
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy, resize_with_pad
from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors
from lerobot.processor import NormalizerProcessorStep, PolicyProcessorPipeline, UnnormalizerProcessorStep
from lerobot.processor.core import TransitionKey
from safetensors.torch import save_file
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

NUM_STATE, NUM_ACTIONS, HORIZON, NUM_TOKENS = 9, 6, 5, 8
CAMERAS = ("top", "wrist")
SHORT, LONG = "push the cube", "push the cube to the mark now and then again"  # padded, and cut
WORDS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<unk>",
    "\n",
    " ",
    "push",
    "the",
    "cube",
    "to",
    "mark",
    "_",
    "a",
)
IMAGE_WORDS = ("<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>", "<video>")


def write_vlm(folder: Path) -> None:
    """A tiny SmolVLM with two layers more than SmolVLA uses. Heads have 64 values, as in every published SmolVLM."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import (
        GPT2TokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    text = {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 40,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,  # as published; SmolVLA does not use it
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
    }
    config = SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=2, tie_word_embeddings=False)
    config.save_pretrained(folder)
    raw = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate((*WORDS, *IMAGE_WORDS))}, unk_token="<unk>")
    )
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r" |\n|_"), behavior="isolated")
    tokenizer = GPT2TokenizerFast(
        tokenizer_object=raw,
        unk_token="<unk>",
        bos_token="<|im_start|>",
        eos_token="<end_of_utterance>",
        pad_token="<|im_end|>",
        truncation_side="left",
        extra_special_tokens={
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "image_token": "<image>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(), tokenizer=tokenizer, video_processor=SmolVLMVideoProcessor()
    )
    processor.save_pretrained(folder)


@contextmanager
def positions_in_order() -> Iterator[None]:
    """Patch i has position i, as in bfloat16, in transformers 5 and in releases when SmolVLA was trained. In float32, the
    release here gives patch i of a row or column the position i - 1, because it multiplies by 1 - 1e-6 before it counts."""

    def embed(self: Any, pixel_values: torch.Tensor, patch_attention_mask: torch.Tensor) -> torch.Tensor:
        return self.patch_embedding(pixel_values).flatten(2).mT + self.position_embedding.weight

    theirs = SmolVLMVisionEmbeddings.forward
    SmolVLMVisionEmbeddings.forward = embed
    try:
        yield
    finally:
        SmolVLMVisionEmbeddings.forward = theirs


def make_config(vlm: Path, **changes: Any) -> SmolVLAConfig:
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, 48, 64))
    return SmolVLAConfig(
        input_features={
            **{f"observation.images.{camera}": image for camera in CAMERAS},
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(NUM_STATE,)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(NUM_ACTIONS,))},
        vlm_model_name=str(vlm),
        num_vlm_layers=4,
        chunk_size=HORIZON,
        n_action_steps=HORIZON,
        resize_imgs_with_padding=(64, 64),
        tokenizer_max_length=NUM_TOKENS,
        device="cpu",
        push_to_hub=False,
        **changes,
    )


def statistics() -> dict[str, dict[str, torch.Tensor]]:
    """Every value differs."""
    mean, std = torch.linspace(-0.2, 0.3, NUM_STATE), torch.linspace(0.5, 1.5, NUM_STATE)
    return {
        "observation.state": {"mean": mean, "std": std},
        "action": {
            "mean": torch.linspace(-0.002, 0.003, NUM_ACTIONS),
            "std": torch.linspace(0.004, 0.02, NUM_ACTIONS),
        },
    }


def observations(cameras: tuple[str, ...], prompts: tuple[str, str]) -> dict[str, Any]:
    frames = {
        f"observation.images.{camera}": torch.from_numpy(hashed_frames(camera, (2, 48, 64, 3)))
        for camera in cameras
    }
    images = {key: frame.permute(0, 3, 1, 2).float() / 255.0 for key, frame in frames.items()}
    return {
        **images,
        "observation.state": torch.from_numpy(hashed("state", (2, NUM_STATE))),
        "task": list(prompts),
    }


def act(
    policy: SmolVLAPolicy,
    before: Any,
    after: Any,
    *,
    cameras: tuple[str, ...] = CAMERAS,
    prompts: tuple[str, str] = (SHORT, "push"),
) -> dict[str, torch.Tensor]:
    """Everything on the way from observations to actions."""
    batch = before(observations(cameras, prompts))
    images, masks = policy.prepare_images(batch)
    noise = torch.from_numpy(hashed("noise", (2, HORIZON, policy.config.max_action_dim))) * 2.0
    chunk = policy.predict_action_chunk(batch, noise=noise)
    return {
        "tokens": batch["observation.language.tokens"],
        "token_mask": batch["observation.language.attention_mask"].bool(),
        "camera_mask": torch.stack(masks, dim=1),
        "image_means": torch.stack(images, dim=1).mean(dim=(2, 3)),
        "state": batch["observation.state"],
        "chunk": chunk,
        "actions": after(chunk),
    }


def velocity(policy: SmolVLAPolicy) -> torch.Tensor:
    """Of the training path, which computes prefix and actions at once: x_t is noise at time 1."""
    model, config = policy.model, policy.config
    images = torch.from_numpy(hashed("trained images", (2, 3, 64, 64)))
    tokens = torch.tensor([[6, 5, 7, 4, 2], [6, 5, 8, 5, 4]])
    state = torch.from_numpy(hashed("trained state", (2, config.max_state_dim)))
    actions = torch.zeros(2, HORIZON, config.max_action_dim)
    noise = torch.from_numpy(hashed("trained noise", (2, HORIZON, config.max_action_dim)))
    found: list[torch.Tensor] = []
    hook = model.action_out_proj.register_forward_hook(lambda _, __, out: found.append(out))
    mask = torch.tensor([[True, True, True, True, False], [True] * 5])
    present = torch.ones(2, dtype=torch.bool)
    with torch.no_grad():
        time = torch.tensor([0.3, 0.8])
        model.forward([images], [present], tokens, mask, state, actions, noise=noise, time=time)
    hook.remove()
    return found[0]


def normalizations() -> dict[str, torch.Tensor]:
    """LeRobot's normalizer steps in each mode, in both directions. The third range is empty."""
    low, high = torch.tensor([-1.0, 2.0, 0.5]), torch.tensor([3.0, 2.5, 0.5])
    stats = dict.fromkeys(("mean", "min", "q01", "q10"), low) | dict.fromkeys(("max", "q99", "q90"), high)
    stats["std"] = torch.tensor([0.5, 2.0, 0.0])
    values = torch.tensor([[0.7, 2.2, 0.5], [-2.0, 9.0, 0.5]])
    found = {}
    for mode in (NormalizationMode.MEAN_STD, NormalizationMode.MIN_MAX, "QUANTILES", "QUANTILE10"):
        mode = NormalizationMode(mode)
        common = {
            "features": {"action": PolicyFeature(type=FeatureType.ACTION, shape=(3,))},
            "norm_map": {FeatureType.ACTION: mode},
            "stats": {"action": stats},
        }
        for step, what in ((NormalizerProcessorStep, "apply"), (UnnormalizerProcessorStep, "revert")):
            found[f"{mode.value}.{what}"] = step(**common)({TransitionKey.ACTION: values})[TransitionKey.ACTION]
    return found


def images() -> dict[str, torch.Tensor]:
    """Resizing of pi0 and SmolVLA, before 2x - 1."""
    found = {}
    for height, width in ((37, 53), (53, 37), (12, 10)):
        frame = hashed_frames("resized", (1, height, width, 3))
        image = torch.from_numpy(frame).permute(0, 3, 1, 2).float() / 255.0
        found[f"smolvla.{height}x{width}"] = resize_with_pad(image, 32, 32, pad_value=0)
        found[f"pi0.{height}x{width}"] = resize_with_pad_torch(image, 32, 32)
    return found


def record(folder: Path) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        vlm = Path(temporary) / "vlm"
        write_vlm(vlm)
        config = make_config(vlm)
        policy = SmolVLAPolicy(config).eval()
        shapes = {key: tuple(value.shape) for key, value in policy.state_dict().items()}
        weights = {key: torch.from_numpy(value) for key, value in hashed_weights(shapes).items()}
        policy.load_state_dict(weights)
        before, after = make_smolvla_pre_post_processors(config, statistics())
        folder.mkdir(parents=True, exist_ok=True)
        found = {"shifted.chunk": act(policy, before, after)["chunk"]}
        with positions_in_order():
            found |= {f"longest.{key}": value for key, value in act(policy, before, after).items()}
            found["trained.velocity"] = velocity(policy)
            config.pad_language_to, config.empty_cameras = "max_length", 1
            padded, _ = make_smolvla_pre_post_processors(config, statistics())
            one_camera = act(policy, padded, after, cameras=("wrist",), prompts=(SHORT, LONG))
            found |= {f"max_length.{key}": value for key, value in one_camera.items()}
        config.pad_language_to, config.empty_cameras = "longest", 0
        policy.save_pretrained(folder)
        before.save_pretrained(folder)
        after.save_pretrained(folder)
        saved = {key: list(shape) for key, shape in sorted(_saved_shapes(folder).items())}
        (folder / "tokenizer.json").write_bytes((vlm / "tokenizer.json").read_bytes())
        (folder / "tokenizer_config.json").write_bytes((vlm / "tokenizer_config.json").read_bytes())
        for path in folder.glob("*.json"):  # no path of this machine
            path.write_text(path.read_text().replace(str(vlm), "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"))
    (folder / "model.safetensors").unlink()
    (folder / "shapes.json").write_text(json.dumps(saved, indent=0))
    _save(found, folder / "recorded.safetensors")
    _save({**normalizations(), **images()}, folder / "preprocessing.safetensors")


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


def _saved_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors.torch import load_file

    return {key: tuple(value.shape) for key, value in load_file(folder / "model.safetensors").items()}


def load_and_act(folder: Path, out: Path) -> None:
    """A folder that ours wrote. Its `vlm_model_name` is replaced, because there is no model hub here."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        vlm = Path(temporary) / "vlm"
        write_vlm(vlm)
        config = PreTrainedConfig.from_pretrained(folder)
        config.vlm_model_name, config.device, config.load_vlm_weights = str(vlm), "cpu", False
        policy = SmolVLAPolicy.from_pretrained(folder, config=config, strict=True).eval()
        before = PolicyProcessorPipeline.from_pretrained(
            folder,
            config_filename="policy_preprocessor.json",
            overrides={"tokenizer_processor": {"tokenizer_name": str(vlm)}},
        )
        with positions_in_order():
            found = act(policy, before, _postprocessor(folder))
    _save(found, out)


def _postprocessor(folder: Path) -> Any:
    from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

    return PolicyProcessorPipeline.from_pretrained(
        folder,
        config_filename="policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"record": record, "act": load_and_act}[command](*map(Path, paths))
