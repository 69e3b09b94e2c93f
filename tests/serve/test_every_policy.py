"""Each of our policies can be served: weights of a run, the server's keys, one batch of two."""

import numpy as np
import pytest

from dovetail.api.policy import following_policy
from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.config.plugins import BUILTIN
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.fleet import with_embodiments
from dovetail.runs.folder import RunFolder
from dovetail.serve.openpi_server import OpenpiServer
from dovetail.weights.store import DiskWeightStore
from support.policy_servers import inputs
from support.small_vlas import SMALL_VLAS, write_small_vla

WORLD = """
task: "dovetail.testing.fakes:FakeTask"
robot: {type: "dovetail.testing.fakes:FakeArm", image_size: [64, 64]}
algorithm: imitation
"""
POLICIES = {
    "gaussian_mlp": "",
    "flow": "hidden: 16, num_layers: 1, horizon: 4",
    "steered": "hidden: 16, num_layers: 1, horizon: 4",
    "valued_flow": "hidden: 16, num_layers: 1, horizon: 4",
    "flow_actor": "",
    "flow_actor_critic": "",
    "actor_critic": "",
    "shared": "policy: {type: flow, hidden: 16, num_layers: 1, horizon: 4}",
    "act": "inputs: [ee_pose, goal], horizon: 4, hidden: 16, num_heads: 2, feedforward: 16",
    "diffusion": "inputs: [ee_pose, goal], horizon: 8, channels: [16, 32], num_train_steps: 10, time_features: 8",
    "residual": "base: {type: flow, hidden: 16, num_layers: 1, horizon: 4}, inputs: [ee_pose, goal]",
    "rl_token": "base: {type: flow, hidden: 16, num_layers: 1, horizon: 4, inputs: [ee_pose, goal]}, horizon: 2, "
    "num_embeddings: 1, embedding_width: 10, token_width: 8, inputs: [ee_pose, goal]",
    "vla": "model_class: 'support.user_models:ChunksWithValues', inputs: [ee_pose, goal], horizon: 4",
    **{f"{kind}{name}": f"family: {name}" for kind in ("", "valued_") for name in SMALL_VLAS},
}
ELSEWHERE = {"remote", "openpi"}  # their weights are on a server


def test_no_policy_is_missing():
    assert POLICIES.keys() == BUILTIN["policy"].keys() - ELSEWHERE


def settings_of(name, folder):
    """In YAML. The settings of a VLA need a folder with small weights."""
    family = POLICIES[name].removeprefix("family: ")
    if family not in SMALL_VLAS:
        return POLICIES[name]
    write_small_vla(family, folder, horizon=4)
    images = f"images: {{{SMALL_VLAS[family].camera}: front}}"
    return (
        f"checkpoint: {folder}, {images}, state: [ee_pose, goal], fit_stats: true, num_flow_steps: 1, device: cpu"
    )


@pytest.mark.parametrize("name", POLICIES)
def test_policy_of_a_run_is_served(name, tmp_path):
    settings = settings_of(name, tmp_path / "model")
    (tmp_path / "run.yaml").write_text(f"{WORLD}policy: {{type: {name}, {settings}}}\n")
    run = RunFolder.create(tmp_path / "runs" / "one", with_embodiments(load([tmp_path / "run.yaml"])))
    assembly = build_assembly(run.config)
    trained = assembly.trainable()
    columns = {
        key: np.random.default_rng(0).random((9, *array.shape))
        for key, array in assembly.robot.spec.observation.items()
    }
    trained.fit_normalizer(
        {**columns, "action": np.random.default_rng(1).random((9, *assembly.robot.spec.action.shape))}
    )
    DiskWeightStore(run.weights).publish(trained.weights())
    assembly.close()

    served = following_policy(find_weights(run.path), log=lambda line: None)

    OpenpiServer(
        served, token=b"a-token-for-tests-long-enough"
    ).close()  # refuses a policy that its own keys do not cover
    rows = inputs(served.spec, num=2)
    if served.spec.prompted:
        rows["prompt"] = np.repeat(encode_prompt("push the cube")[None], 2, axis=0)
    actions = served.act(rows, ActContext(deterministic=True)).actions
    assert actions.shape == (2, served.spec.horizon, *served.spec.action.shape) and np.isfinite(actions).all()
