"""What LeRobot's own package computed with tiny models, recorded by scripts/record_vla_fixtures.py. numpy and json only,
because the script runs in another environment.

The weights are not stored: each tensor follows from its name.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from zlib import crc32

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lerobot_vla"
NUM_STATE, NUM_ACTIONS, HORIZON = 5, 4, 5
STATE_NAMES = ("j1", "j2", "j3", "j4", "gripper")
ACTION_NAMES = ("j1", "j2", "j3", "gripper")
TASKS = ("push_the\ncube", "lift  it")


def seeded_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The same in all versions: numpy never changes RandomState."""
    scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.3
    values = np.random.RandomState(crc32(name.encode())).standard_normal(shape)
    return (scale * values).astype(np.float32)


def inputs() -> dict[str, np.ndarray]:
    """Two rows: frames of two cameras, of other sizes than the model's, states also outside the statistics' range."""
    random = np.random.RandomState(7)
    return {
        "base_0_rgb": random.randint(0, 256, (2, 48, 64, 3)).astype(np.uint8),
        "right_wrist_0_rgb": random.randint(0, 256, (2, 40, 30, 3)).astype(np.uint8),
        "state": (1.5 * random.standard_normal((2, NUM_STATE))).astype(np.float32),
        "actions": random.standard_normal((2, HORIZON, NUM_ACTIONS)).astype(np.float32),
        "noise": random.standard_normal((2, HORIZON, 32)).astype(np.float32),
        "time": np.array([0.3, 0.9], np.float32),
    }


def statistics() -> dict[str, dict[str, np.ndarray]]:
    """Every value differs; one range of quantiles is empty."""

    def of(size: int, scale: float) -> dict[str, np.ndarray]:
        mean, std = np.linspace(-0.2, 0.3, size) * scale, np.linspace(0.5, 1.5, size) * scale
        low, high = mean - 1.2 * std, mean + 1.5 * std
        if size == NUM_STATE:
            high[2] = low[2]
        found = {"mean": mean, "std": std, "q01": low, "q99": high, "min": low - std, "max": high + std}
        return {name: value.astype(np.float32) for name, value in found.items()}

    return {"observation.state": of(NUM_STATE, 1.0), "action": of(NUM_ACTIONS, 0.4)}


def write_recorded_folder(name: str, folder: Path) -> Path:
    """The folder as LeRobot saved it, with its weights made again."""
    from safetensors.numpy import save_file

    shutil.copytree(FIXTURES / name / "folder", folder)
    shapes = json.loads((FIXTURES / name / "shapes.json").read_text())
    save_file(
        {key: seeded_tensor(key, tuple(shape)) for key, shape in shapes.items()}, folder / "model.safetensors"
    )
    return folder


def recorded(name: str) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(FIXTURES / name / "outputs.safetensors")


def weights_of(name: str, *, prefix: str = "model.") -> dict[str, np.ndarray]:
    """The recorded weights with another prefix."""
    shapes = json.loads((FIXTURES / name / "shapes.json").read_text())
    return {prefix + key.removeprefix("model."): seeded_tensor(key, tuple(shape)) for key, shape in shapes.items()}


def write_openpi_pi05(folder: Path) -> Path:
    """pi0.5 as openpi's converter writes it: the config does not say which model it is."""
    from safetensors.numpy import save_file

    (folder / "assets" / "droid").mkdir(parents=True)
    config = {"action_dim": 32, "action_horizon": HORIZON, "paligemma_variant": "gemma_2b"}
    config |= {"action_expert_variant": "gemma_300m", "precision": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(FIXTURES / "pi05" / "folder" / "tokenizer.json", folder)
    weights = weights_of("pi05", prefix="")
    weights.pop("paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight")  # tied: stored once
    save_file(weights, folder / "model.safetensors")
    numbers = {
        theirs: {key: statistics()[ours][key].tolist() for key in ("mean", "std", "q01", "q99")}
        for theirs, ours in (("state", "observation.state"), ("actions", "action"))
    }
    (folder / "assets" / "droid" / "norm_stats.json").write_text(json.dumps({"norm_stats": numbers}))
    return folder


def write_old_pi05(folder: Path) -> Path:
    """As LeRobot wrote folders before it had processors: statistics inside the weights."""
    from safetensors.numpy import save_file

    write_recorded_folder("pi05", folder)
    for path in folder.glob("policy_*"):
        path.unlink()
    weights = weights_of("pi05")
    for key, prefixes in (
        ("observation.state", ("normalize_inputs.buffer_observation_state.",)),
        ("action", ("normalize_targets.buffer_action.", "unnormalize_outputs.buffer_action.")),
    ):
        for prefix in prefixes:
            weights |= {prefix + stat: statistics()[key][stat] for stat in ("q01", "q99")}
    save_file(weights, folder / "model.safetensors")
    return folder
