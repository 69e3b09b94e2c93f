"""Run by the slow tests in the environment of `scripts/lerobot-env`: reads datasets with the real package.

python lerobot_package_script.py load|resume|train|create FOLDER [TRUTH.npz]    prints one line of JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import dovetail_lerobot_env  # noqa: F401  # before torchvision
import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

REPO = "dovetail/test"


def load(root: Path, truth: Path) -> dict[str, Any]:
    """Compare each frame with the exported one: numbers are equal, and images are nearest to their original."""
    with np.load(truth) as archive:
        expected = dict(archive)
    dataset = LeRobotDataset(REPO, root=root)
    numbers = [name for name in expected if name.startswith("value/")]
    pictures = [name for name in expected if name.startswith("frames/")]
    worst: dict[str, float] = {}
    for index in range(len(dataset)):
        item = dataset[index]
        assert item["task"] == str(expected["task"][index]), (index, item["task"])
        for name in numbers:
            got = item[name.removeprefix("value/")].numpy()
            np.testing.assert_array_equal(got, expected[name][index].reshape(got.shape), err_msg=f"{name} {index}")
        for name in pictures:
            frame = item[name.removeprefix("frames/")]
            assert frame.dtype == torch.float32 and frame.min() >= 0 and frame.max() <= 1
            got = (frame.permute(1, 2, 0).numpy() * 255).round()
            errors = ((expected[name] - got[None]) ** 2).mean(axis=(1, 2, 3))  # to every image
            assert errors.argmin() == index, f"{name}: frame {index} shows {errors.argmin()}"
            worst[name] = max(worst.get(name, 0.0), float(errors[index]))
    return {
        "num_frames": len(dataset),
        "num_episodes": dataset.num_episodes,
        "psnr_db": {name: 10 * np.log10(255**2 / max(error, 1e-9)) for name, error in worst.items()},
        "stats": sorted(dataset.meta.stats),
        "chunks": _chunks(root),
    }


def _chunks(root: Path) -> int:
    """Check windows over time, which end at episode borders; return their number."""
    plain = LeRobotDataset(REPO, root=root)
    camera = plain.meta.camera_keys[0]
    deltas = {"action": [-0.1, 0.0, 0.1, 0.2], camera: [-0.1, 0.0]}
    dataset = LeRobotDataset(REPO, root=root, delta_timestamps=deltas)
    for index in range(len(dataset)):
        item = dataset[index]
        episode = int(item["episode_index"])
        first, end = (plain.meta.episodes[episode][f"dataset_{edge}_index"] for edge in ("from", "to"))
        places = [index - 1, index, index + 1, index + 2]
        pads = [not first <= place < end for place in places]
        assert item["action_is_pad"].tolist() == pads, (index, item["action_is_pad"])
        for row, (place, pad) in enumerate(zip(places, pads, strict=True)):
            if not pad:
                assert torch.equal(item["action"][row], plain[place]["action"])
        if index > first:
            assert torch.equal(item[camera][0], plain[index - 1][camera])
    return len(dataset)


def resume(root: Path) -> dict[str, Any]:
    """Record one more episode into an exported dataset with the real package."""
    dataset = LeRobotDataset(REPO, root=root)
    before = dataset.num_episodes
    dataset.episode_buffer = dataset.create_episode_buffer()
    for tick in range(4):
        frame: dict[str, Any] = {"task": "by lerobot"}
        for name, of in dataset.features.items():
            if name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
                continue
            if of["dtype"] == "video":
                frame[name] = np.full(of["shape"], 60 * tick, np.uint8)
            else:
                frame[name] = np.full(of["shape"], tick).astype(of["dtype"])
        dataset.add_frame(frame)
    dataset.save_episode()
    dataset.finalize()
    again = LeRobotDataset(REPO, root=root)
    last = again[len(again) - 1]
    return {"before": before, "after": again.num_episodes, "task": last["task"], "action": last["action"].tolist()}


def train(root: Path) -> dict[str, Any]:
    """A small ACT from scratch, through LeRobot's own features, statistics, processors and a DataLoader."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.act.processor_act import make_act_pre_post_processors

    torch.manual_seed(0)
    torch.set_num_threads(1)
    meta = LeRobotDataset(REPO, root=root).meta
    features = dataset_to_policy_features(meta.features)
    outputs = {key: of for key, of in features.items() if of.type is FeatureType.ACTION}
    config = ACTConfig(
        input_features={key: of for key, of in features.items() if key not in outputs},
        output_features=outputs,
        chunk_size=4,
        n_action_steps=4,
        pretrained_backbone_weights=None,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=8,
        device="cpu",
    )
    policy = ACTPolicy(config)
    policy.train()
    process, _ = make_act_pre_post_processors(config, dataset_stats=meta.stats)
    deltas = {"action": [tick / meta.fps for tick in range(config.chunk_size)]}
    dataset = LeRobotDataset(REPO, root=root, delta_timestamps=deltas)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    losses: list[float] = []
    while len(losses) < 60:
        for batch in loader:
            loss, _ = policy.forward(process(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "inputs": sorted(config.input_features), "outputs": sorted(config.output_features)}


def create(root: Path, truth: Path) -> dict[str, Any]:
    """A dataset recorded by the real package: a video, pictures in the tables, flags, two tasks."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
        "observation.matrix": {"dtype": "float64", "shape": (2, 2), "names": None},
        "observation.images.top": {
            "dtype": "video",
            "shape": (64, 96, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.images.pic": {
            "dtype": "image",
            "shape": (32, 48, 3),
            "names": ["height", "width", "channels"],
        },
        "action": {"dtype": "float32", "shape": (2,), "names": {"motors": ["x", "y"]}},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    dataset = LeRobotDataset.create(REPO, fps=10, features=features, root=root, robot_type="so101")
    rng = np.random.default_rng(0)
    kept: dict[str, list[Any]] = {name: [] for name in (*features, "episode", "task")}
    for episode in range(3):
        for tick in range(5 + episode):
            last = tick == 4 + episode
            height, width = np.mgrid[0:64, 0:96]
            wave = 127 + 100 * np.sin(height / 30 + tick + 3 * episode) * np.cos(width / 40)
            frame = {
                "observation.state": rng.normal(size=3).astype(np.float32),
                "observation.matrix": rng.normal(size=(2, 2)),
                "observation.images.top": np.repeat(wave[..., None], 3, 2).astype(np.uint8),
                "observation.images.pic": rng.integers(0, 256, (32, 48, 3), np.uint8),
                "action": rng.normal(size=2).astype(np.float32),
                "next.reward": np.array([float(last and episode != 1)], np.float32),
                "next.done": np.array([last]),
                "next.success": np.array([last and episode != 1]),
            }
            for name, value in frame.items():
                kept[name].append(value)
            kept["episode"].append(episode)
            kept["task"].append("sort" if episode == 2 else "stack")
            dataset.add_frame({**frame, "task": kept["task"][-1]})
        dataset.save_episode()
    dataset.finalize()
    np.savez(truth, **{name: np.array(value) for name, value in kept.items()})
    return {"num_frames": len(kept["episode"])}


if __name__ == "__main__":
    todo = {"load": load, "resume": resume, "train": train, "create": create}[sys.argv[1]]
    print(json.dumps(todo(*(Path(argument) for argument in sys.argv[2:]))))  # noqa: T201
