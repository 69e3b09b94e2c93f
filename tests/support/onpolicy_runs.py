"""Small PPO runs on a task with a dense reward."""

import torch

from dovetail.core.types import WeightSnapshot
from dovetail.runs.assembly import policy_components
from dovetail.runtime.onpolicy.training import OnPolicy

__all__ = ["PPO_RUN", "build_policy", "build_training"]

PPO_RUN = """
task: {type: "support.dense_reach:DenseReach", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [32, 32], value_hidden: [32, 32]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 16, lr: 0.001, batch_size: 64, num_epochs: 2, gamma: 0.95}
run: {demos: 0, env_steps: 256, eval_episodes: 2, untrained_episodes: 1, video_episodes: 0}
"""


def build_training(config, **settings):
    torch.set_num_threads(1)
    robot = config.robot.build(task=config.task.build()).spec
    policy = policy_components.build_policy(config.policy, robot=robot, seed=config.run.seed)
    algorithm = config.algorithm.build(policy=policy, seed=config.run.seed)
    return OnPolicy(config, algorithm=algorithm, control_hz=robot.control_hz, **settings)


def build_policy(config, weights):
    policy = build_training(config)._algorithm._policy
    policy.load(WeightSnapshot(version=1, components=weights, hashes={}))
    return policy
