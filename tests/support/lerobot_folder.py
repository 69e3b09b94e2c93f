"""Folders of small ACT and diffusion policies as the real lerobot package saved them, and a robot that fits them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from dovetail.config.plugins import settings_of
from dovetail.config.schema import PluginSection
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.runs.assembly.policy_components import build_policy
from support import lerobot_rule

FIXTURES = Path(__file__).parent.parent / "fixtures" / "lerobot-policies"
CASES = sorted(path.stem for path in FIXTURES.glob("*.json") if path.stem != "schedules")

# its axes have another order than the checkpoint's: state [c, a, d, b], action [z, x, y]
ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joints": ArraySpec(shape=(3,), names=("a", "b", "c")),
        "hand": ArraySpec(shape=(1,), names=("d",)),
        "task": ArraySpec(shape=(5,)),
        "left": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "right": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(3,), low=(-50.0,) * 3, high=(50.0,) * 3, names=("x", "y", "z")),
    action_kind="joint_target",
    control_hz=10.0,
)
STATE_AXES, ACTION_AXES = ("c", "a", "d", "b"), ("z", "x", "y")


def recorded(case):
    return json.loads((FIXTURES / f"{case}.json").read_text())


def write_folder(path, case, *, old=False):
    """Write the folder. `old`: without processors, with the statistics inside the weights, as before lerobot 0.4."""
    found = recorded(case)
    path.mkdir()
    weights = lerobot_rule.weights_by_rule(found["weights"], found["fixed"])
    for name, content in found["files"].items():
        if not (old and "processor" in name):
            (path / name).write_text(json.dumps(content))
    for name, tensors in found["tensors"].items():
        arrays = {key: np.array(value, np.float32) for key, value in tensors.items()}
        if not old:
            save_file(arrays, path / name)
            continue
        for key, value in arrays.items():
            feature, _, statistic = key.rpartition(".")
            owner = "unnormalize_outputs" if "postprocessor" in name else "normalize_inputs"
            weights[f"{owner}.buffer_{feature.replace('.', '_')}.{statistic}"] = value
    save_file(weights, path / "model.safetensors")
    return path


def widen(folder, **sizes):
    """Change the number of axes of a folder's features."""
    config = json.loads((folder / "config.json").read_text())
    for features in (config["input_features"], config["output_features"]):
        for key, feature in features.items():
            feature["shape"] = [sizes[key.rpartition(".")[2]]]
    (folder / "config.json").write_text(json.dumps(config))
    for path in folder.glob("policy_*.safetensors"):
        stats = load_file(path)
        save_file({key: np.resize(v, sizes[key.split(".")[-2]]) for key, v in stats.items()}, path)
    weights = load_file(folder / "model.safetensors")
    for key, value in weights.items():
        for part, feature in (("robot_state_input", "state"), ("env_state_input", "environment_state")):
            if f"{part}_proj.weight" in key:
                weights[key] = np.resize(value, (len(value), sizes[feature]))
        if "action_input_proj.weight" in key:
            weights[key] = np.resize(value, (len(value), sizes["action"]))
        if "action_head" in key:
            weights[key] = np.resize(value, (sizes["action"], *value.shape[1:]))
    save_file(weights, folder / "model.safetensors")


def settings(case, path):
    """The settings of our policy for this folder and ROBOT."""
    features = recorded(case)["files"]["config.json"]["input_features"]
    found = {"type": case.partition("_")[0], "checkpoint": str(path), "state": ["joints", "hand"]}
    found |= {"state_axes": list(STATE_AXES), "action_axes": list(ACTION_AXES)}
    if "observation.environment_state" in features:
        found["environment"] = ["task"]
    if "observation.images.front" in features:
        found["images"] = {"wrist": "right", "front": "left"}
    return found


def load_policy(case, path, *, robot=ROBOT, **more):
    return policy_of(settings(case, path) | more, robot=robot)


def policy_of(config, *, robot=ROBOT, components=None):
    config = dict(config)
    name = config.pop("type")
    section = PluginSection(kind="policy", type=name, config=settings_of("policy", name).from_mapping(config))
    return build_policy(section, robot=robot, seed=0, components=components)


def observations(case, num_steps):
    """What the robot sees, [2, ...] or [2, num_steps, ...] with masks: the recorded observation in the robot's order."""
    features = recorded(case)["files"]["config.json"]["input_features"]
    shapes = {key: tuple(feature["shape"]) for key, feature in features.items()}
    ours = []
    for step in range(num_steps):
        seen = lerobot_rule.observation(shapes, step)
        state = dict(zip(STATE_AXES, seen["observation.state"].T, strict=True))
        found = {
            "joints": np.stack([state[name] for name in "abc"], axis=1),
            "hand": state["d"][:, None],
            "task": seen.get("observation.environment_state"),
        }
        for camera, key in (("front", "left"), ("wrist", "right")):
            image = seen.get(f"observation.images.{camera}")
            found[key] = None if image is None else np.rint(image * 255.0).astype(np.uint8).transpose(0, 2, 3, 1)
        ours.append({key: value for key, value in found.items() if value is not None})
    if num_steps == 1:
        return ours[0]
    stacked = {key: np.stack([one[key] for one in ours], axis=1) for key in ours[0]}
    return stacked | {f"{key}/mask": np.ones((2, num_steps), np.bool_) for key in ours[0]}
