"""Published layouts open loop in each way of computing, next to float32 on the CPU. Skipped where it needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.api import evaluate_open_loop
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext, Purpose, WeightSnapshot
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import LoraConfig, Pi0Config
from support.made_runs import ROBOT, made_episode, made_run
from support.pi0_folders import write_json, write_lerobot
from support.recorded_vla import write_recorded_folder
from support.smolvla_folders import write_smolvla

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
FOLDERS = {  # policy type: writes its folder, and the cameras of the checkpoint
    "pi0": (write_lerobot, ("base_0_rgb",)),
    "pi05": (lambda folder: write_recorded_folder("pi05", folder), ("base_0_rgb",)),
    "smolvla": (write_smolvla, ("top", "wrist")),
}
WAYS = [  # settings, and the largest relative difference of the chunks
    pytest.param({"device": "cpu", "precision": "bfloat16"}, 0.05, id="cpu-bfloat16"),
    pytest.param({"device": "cuda", "precision": "float32", "execution": "eager"}, 1e-3, id="eager", marks=GPU),
    pytest.param({"device": "cuda", "precision": "float32", "execution": "graph"}, 1e-3, id="graph", marks=GPU),
    pytest.param({"device": "cuda"}, 0.05, id="compiled-graph", marks=GPU),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    episodes = [made_episode(f"e{i}", num_steps=9, purpose=Purpose.DEMO) for i in range(2)]
    return made_run(tmp_path_factory.mktemp("runs") / "rec", *episodes).path


def section(kind, root):
    """A policy for the robot of the recording: 3 state axes, 2 action axes, camera `front`."""
    write, cameras = FOLDERS[kind]
    folder = write(root / kind)
    stats = {"mean": [0.5] * 3, "std": [4.0] * 3, "q01": [-9.0] * 3, "q99": [9.0] * 3}
    actions = {name: [0.1 * value for value in values[:2]] for name, values in stats.items()}
    write_json(root / "stats.json", {"observation.state": stats, "action": actions})
    images = dict.fromkeys(cameras, "front")
    return {"type": kind, "checkpoint": str(folder), "images": images, "stats": str(root / "stats.json")}


def chunks_of(found):
    return np.concatenate([episode.chunks.reshape(-1) for episode in found.episodes])


@pytest.mark.parametrize(("settings", "tolerance"), WAYS)
@pytest.mark.parametrize("kind", FOLDERS)
def test_open_loop_gives_the_chunks_and_errors_of_the_cpu(recorded, tmp_path, kind, settings, tolerance):
    policy = section(kind, tmp_path)
    expected, found = (
        evaluate_open_loop(recorded, recorded, {"policy": {**policy, **way}}, every=3)
        for way in ({"device": "cpu"}, settings)
    )
    wanted, chunks = chunks_of(expected), chunks_of(found)
    assert len(found.episodes) == 2 and wanted.std() > 0.05  # not at the limits, and not all the same
    assert 0.0 < np.linalg.norm(chunks - wanted) / np.linalg.norm(wanted) < tolerance
    assert found.relative == pytest.approx(expected.relative, rel=tolerance)


# ---- before the first tick, and new weights


def acting(root, **settings):
    policy = {**section("pi0", root), "device": "cuda", **settings}
    del policy["type"]
    return Pi0Policy(Pi0Config(**policy), robot=ROBOT, seed=3)


def observations():
    return {
        "state": np.ones((1, 3), np.float32),
        "front": np.full((1, 12, 16, 3), 90, np.uint8),
        "prompt": encode_prompt("push the cube")[None],
    }


@GPU
def test_warm_up_captures_every_graph_that_acting_needs(tmp_path):
    policy = acting(tmp_path, execution="graph")
    policy.warmup()
    graphs = dict(policy._sampler._graphs)
    assert set(graphs) == {(1, False), (1, True)}
    chunk = policy.act(observations(), ActContext(seed=1)).actions
    policy.act(observations(), ActContext(seed=2, prefix=chunk, delay=2, horizon=2))
    assert policy._sampler._graphs == graphs


@GPU
def test_new_weights_need_memory_only_for_what_is_trained(tmp_path):
    write_new_model(tmp_path / "small", PI0, size="small", horizon=5)
    lora = LoraConfig(rank=2)
    policy = acting(tmp_path, checkpoint=str(tmp_path / "small"), execution="graph", train="lora", lora=lora)
    policy.warmup()
    weights = {name: dict(arrays) for name, arrays in policy.weights().items()}
    trained = sum(parameter.nbytes for parameter in policy._trained.components["lora"].parameters())
    whole = sum(parameter.nbytes for parameter in policy.network.parameters())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    use = policy.stage(WeightSnapshot(version=2, components=weights, hashes={}))
    more = torch.cuda.max_memory_allocated() - before
    pieces = 512 * len(weights["lora"])  # torch allocates so many bytes at once
    assert 0 < more <= 2 * trained + pieces < 0.1 * whole
    use()
