"""The smallest run that does everything, in a second: demonstrations, cloning, learning online, evaluations."""

TOY = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 4}
policy: {type: gaussian_mlp, hidden: [32, 32]}
algorithm: {type: rlpd, batch_size: 32, hidden: [32, 32], lr: 0.001, num_steps: 3}
learner: {utd: 1, warmup_updates: 20, bc_updates: 20}
run: {demos: 3, env_steps: 120, eval_episodes: 4, untrained_episodes: 2, video_episodes: 1}
"""
