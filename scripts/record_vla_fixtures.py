"""Record what LeRobot's own pi0 and pi05 compute with tiny weights: tests/fixtures/lerobot_vla.

    python3.12 -m venv ENV && ENV/bin/pip install "lerobot[pi,peft]==0.6.1"
    ENV/bin/python scripts/record_vla_fixtures.py
    ENV/bin/python scripts/record_vla_fixtures.py pi0 FOLDER  # whether LeRobot gets the same from a folder of ours

Networks, processors and folders are LeRobot's. Only sizes that it has as constants are made smaller, and the tokenizer,
which it would download, is a tiny one with one token for each character.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import peft
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi0.processor_pi0 import make_pi0_pre_post_processors
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.pi05.configuration_pi05 import PI05Config
from lerobot.policies.pi05.processor_pi05 import make_pi05_pre_post_processors
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from support import recorded_vla as shared

VOCABULARY, IMAGE_SIZE = 128, 28
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def main() -> None:
    shrink(modeling_pi0)
    shrink(modeling_pi05)
    if len(sys.argv) == 3:
        check(sys.argv[1], Path(sys.argv[2]))
        return
    for name, modeling, config, make_processors in (
        ("pi0", modeling_pi0, PI0Config, make_pi0_pre_post_processors),
        ("pi05", modeling_pi05, PI05Config, make_pi05_pre_post_processors),
    ):
        for suffix, relative in (("", False), ("_relative", True)):
            record(name + suffix, modeling, config, make_processors, relative=relative)


def check(name: str, folder: Path) -> None:
    """Load the folder as LeRobot's users do, and compare all that it computes with what was recorded."""
    policy_class = modeling_pi05.PI05Policy if name.startswith("pi05") else modeling_pi0.PI0Policy
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        policy = policy_class.from_pretrained(folder).eval()
    assert "All keys loaded successfully!" in said.getvalue(), said.getvalue()
    use_tokenizer(folder)
    before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    expected = shared.recorded(name)
    for key, value in outputs(policy, before, after).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-6, atol=1e-6, err_msg=key)


def shrink(modeling: ModuleType) -> None:
    width = {"gemma_2b": (32, 64), "gemma_300m": (24, 40)}
    modeling.get_gemma_config = lambda variant: modeling.GemmaConfig(
        width=width[variant][0], depth=3, mlp_dim=width[variant][1], num_heads=8, num_kv_heads=1, head_dim=16
    )
    whole, expert = modeling.PaliGemmaForConditionalGenerationWithPiGemma, modeling.PiGemmaForCausalLM

    def make_whole(config: Any) -> Any:
        vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 48}
        for key, value in {**vision, "projection_dim": 32, "patch_size": 14}.items():
            setattr(config.vision_config, key, value)
        config.projection_dim, config.text_config.vocab_size = 32, VOCABULARY
        return whole(config=config)

    def make_expert(config: Any) -> Any:
        config.vocab_size = VOCABULARY
        return expert(config=config)

    modeling.PaliGemmaForConditionalGenerationWithPiGemma = make_whole
    modeling.PiGemmaForCausalLM = make_expert


def write_tokenizer(folder: Path) -> None:
    characters = [chr(code) for code in range(32, 127)]
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", *characters]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    use_tokenizer(folder)


def use_tokenizer(folder: Path) -> None:
    """Instead of the one that LeRobot would download."""
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", pad_token="<pad>", unk_token="<unk>"
    )
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: fast


def record(name: str, modeling: ModuleType, config_class: Any, make_processors: Any, *, relative: bool) -> None:
    place = shared.FIXTURES / name
    shutil.rmtree(place, ignore_errors=True)
    folder = place / "folder"
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, IMAGE_SIZE, IMAGE_SIZE))
    config = config_class(
        input_features={
            **{f"observation.images.{camera}": image for camera in CAMERAS},
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(shared.NUM_STATE,)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(shared.NUM_ACTIONS,))},
        image_resolution=(IMAGE_SIZE, IMAGE_SIZE),
        chunk_size=shared.HORIZON,
        n_action_steps=shared.HORIZON,
        num_inference_steps=4,
        device="cpu",
        use_relative_actions=relative,
        action_feature_names=list(shared.ACTION_NAMES),
    )
    policy_class = modeling.PI0Policy if name.startswith("pi0_") or name == "pi0" else modeling.PI05Policy
    policy = policy_class(config).eval()
    seed_weights(policy)
    statistics = {
        key: {stat: torch.from_numpy(value) for stat, value in of.items()}
        for key, of in shared.statistics().items()
    }
    before, after = make_processors(config, statistics)
    policy.save_pretrained(folder)
    before.save_pretrained(folder)
    after.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for path in folder.glob("README.md"):
        path.unlink()
    shapes = {key: list(value.shape) for key, value in sorted(weights.items())}
    for key, value in weights.items():
        np.testing.assert_array_equal(value.numpy(), shared.seeded_tensor(key, tuple(value.shape)))
    (place / "shapes.json").write_text(json.dumps(shapes, indent=0))
    save_file(outputs(policy, before, after), place / "outputs.safetensors")
    if not relative:
        record_adapter(policy, before, after, place)


def record_adapter(policy: Any, before: Any, after: Any, place: Path) -> None:
    """LoRA with PEFT itself; the last layer is trained completely."""
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=r".*\.gemma_expert\..*\.(q|v|up)_proj",
        modules_to_save=["action_out_proj"],
    )
    wrapped = peft.get_peft_model(policy, config)
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.from_numpy(shared.seeded_tensor(key, tuple(parameter.shape))))
    wrapped.save_pretrained(place / "adapter")
    (place / "adapter" / "README.md").unlink(missing_ok=True)
    save_file(outputs(wrapped.base_model.model, before, after), place / "adapted_outputs.safetensors")


def seed_weights(policy: Any) -> None:
    """LeRobot saves `lm_head` and `embed_tokens`, which are not tied and differ after training. They differ here too."""
    with torch.no_grad():
        for key, parameter in policy.state_dict(keep_vars=True).items():
            parameter.copy_(torch.from_numpy(shared.seeded_tensor(key, tuple(parameter.shape))))


def outputs(policy: Any, before: Any, after: Any) -> dict[str, np.ndarray]:
    given = {key: torch.from_numpy(value) for key, value in shared.inputs().items()}
    batch = before(
        {
            **{
                f"observation.images.{camera}": given[camera].permute(0, 3, 1, 2).float() / 255.0
                for camera in CAMERAS
                if camera in given  # the left wrist's camera is absent
            },
            "observation.state": given["state"],
            "action": given["actions"],
            "task": list(shared.TASKS),
        }
    )
    images, masks = policy._preprocess_images(batch)
    tokens, token_mask = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    has_state = hasattr(policy.model, "state_proj")
    state = (policy.prepare_state(batch),) if has_state else ()
    normalized = policy.model.sample_actions(images, masks, tokens, token_mask, *state, noise=given["noise"])
    chunk = normalized[..., : shared.NUM_ACTIONS]
    with torch.no_grad():
        losses = policy.model.forward(
            images, masks, tokens, token_mask, *state, policy.prepare_action(batch), given["noise"], given["time"]
        )
    found = {
        "images": torch.stack(images, dim=1),
        "camera_mask": torch.stack(masks, dim=1),
        "tokens": tokens,
        "token_mask": token_mask.bool(),
        "normalized_state": batch["observation.state"],
        "normalized_actions": batch["action"],
        "chunk": normalized,
        "actions": after(chunk),
        "losses": losses[..., : shared.NUM_ACTIONS],
    }
    return {key: value.contiguous().numpy() for key, value in found.items()}


if __name__ == "__main__":
    main()
