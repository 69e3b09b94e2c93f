"""Whole runs on a GPU. Skipped without one."""

import pytest
import torch

from dovetail.config.load import load
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from support.toy_run import TOY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("overrides", [(), ("learner.precision=bf16",)])
def test_run_on_gpu(tmp_path, overrides):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    run = InlineRun(RunFolder.create(tmp_path / "a", load([path], ["device=auto", *overrides])))
    run.run()
    assert run.status.evaluations["after"].num_episodes == 4
    assert next(iter(run.runtime.learner.policy.components.values()))[0].weight.is_cuda
    InlineRun(RunFolder.open(tmp_path / "a")).run()


PPO_RUN = """
task: {type: "support.dense_reach:DenseReach", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [16, 16], value_hidden: [16, 16]}
algorithm: {type: ppo, num_envs: 2, rollout_steps: 32, num_epochs: 2, batch_size: 32}
run: {demos: 0, env_steps: 256, eval_episodes: 2, untrained_episodes: 0}
device: cuda
"""


def test_ppo_run_on_gpu(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(PPO_RUN)
    run = InlineRun(RunFolder.create(tmp_path / "a", load([path])))
    run.run()
    assert run.status.updates == 4
