"""Small runs that each have one problem on purpose, by the name of the coach's check that must find it.

The toy run of `toy_run` takes about a second; problems of other learners have their own configs.
"""

from dataclasses import dataclass

from support.toy_run import TOY

PPO = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 8, tolerance: 0.001}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [16, 16], value_hidden: [16, 16]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 8, batch_size: 32, num_epochs: 2}
run: {demos: 0, env_steps: 800, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}
"""
QUICK = (
    "run.eval_episodes=1",
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "learner={utd: 0.1, warmup_updates: 0, bc_updates: 50, start_from: cloning}",
)
ALONE = ("run.demos=0", "operator={type: none}")
HARD = ("task.tolerance=0.002", "task.max_steps=20")  # hardly solved by chance
DENSE = "task={type: 'support.dense_reach:DenseReach', max_steps: 30, tolerance: 0.0001}"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A run with one problem. `cause` is the cause of issue 18 that it stands for, if it is one of the ten."""

    check: str
    overrides: tuple[str, ...]
    cause: str = ""
    config: str = TOY


PLANTED = (
    Planted(
        cause="critic overestimates",
        check="q_above_returns",
        overrides=(
            *QUICK,
            "learner.utd=4",
            "run.env_steps=300",
            "algorithm={temperature: 1.0, backup_entropy: true, target_entropy: 4.0, gamma: 0.99, tau: 0.1}",
        ),
    ),
    Planted(
        cause="critic does not fit",
        check="critic_does_not_fit",
        overrides=(*QUICK, *HARD, "learner.utd=2", "algorithm.lr=1e-7", "run.env_steps=500"),
    ),
    Planted(
        cause="actor collapsed",
        check="entropy_collapsed",
        config=PPO,
        overrides=("policy.initial_std=0.01", "algorithm.entropy_coef=0.0", "run.env_steps=500"),
    ),
    Planted(
        cause="no successes in the data",
        check="no_reward",
        overrides=(*QUICK, *ALONE, *HARD, "run.env_steps=400"),
    ),
    Planted(
        cause="help too much",
        check="help_not_falling",
        overrides=(
            *QUICK,
            "operator={watched_share: 1.0, fade_out_minutes: 100000, stuck_after_steps: 1, min_progress: 10}",
            "operator.min_takeover_steps=60",
            "operator.max_takeover_steps=60",
            "run.env_steps=1100",
        ),
    ),
    Planted(
        cause="help too late",
        check="help_too_late",
        overrides=(
            *QUICK,
            "run.demos=0",
            "operator={watched_share: 1.0, fade_out_minutes: 100000, stuck_after_steps: 24, min_progress: 10}",
            "run.env_steps=600",
        ),
    ),
    Planted(
        cause="labels wrong",
        check="rewards_disagree",
        overrides=(*QUICK, "run.demos=0", "labels=[{type: 'support.flawed_plugins:Liar'}]", "run.env_steps=400"),
    ),
    Planted(
        cause="clock wrong",
        check="clock_wrong",
        overrides=(*QUICK, "robot={type: 'support.flawed_plugins:SlowTicks'}", "run.env_steps=300"),
    ),
    Planted(
        cause="delay wrong",
        check="clock_wrong",
        overrides=(
            *QUICK,
            *ALONE,
            *HARD,
            "task.max_steps=40",
            "robot={type: 'support.flawed_plugins:Delayed'}",
            "run.env_steps=600",
        ),
    ),
    Planted(
        cause="observations lack information",
        check="observations_lack_information",
        overrides=(
            *QUICK,
            "run.demos=10",
            "operator={type: none}",
            "policy.inputs=[ee_pose, gripper]",
            "run.env_steps=500",
        ),
    ),
    Planted(
        cause="action limits too small",
        check="limits_too_small",
        overrides=(*QUICK, *ALONE, "safety.max_step=0.002", "run.env_steps=500"),
    ),
    Planted(
        cause="reward not used",
        check="reward_not_used",
        overrides=(*QUICK, *ALONE, DENSE, "run.env_steps=500"),
    ),
    # further problems
    Planted(
        check="one_source",
        overrides=(
            *QUICK,
            "operator={watched_share: 1.0, fade_out_minutes: 100000, stuck_after_steps: 1, min_progress: 10}",
            "operator.min_takeover_steps=60",
            "operator.max_takeover_steps=60",
            "run.env_steps=500",
        ),
    ),
    Planted(
        check="updates_starving",
        overrides=(*QUICK, *ALONE, "learner.utd=2", "algorithm={type: hg_dagger}", "run.env_steps=250"),
    ),
    Planted(
        check="stale_weights",
        overrides=(*QUICK, "learner.utd=1", "learner.publish_every=1000000", "run.env_steps=500"),
    ),
    Planted(
        check="out_of_range",
        overrides=(
            *QUICK,
            "robot={type: 'support.flawed_plugins:Moved'}",
            "policy.inputs=[ee_pose, goal]",
            "operator={type: none}",
            "run.env_steps=400",
        ),
    ),
    Planted(check="saturated", config=PPO, overrides=("algorithm.lr=1.0", "run.env_steps=600")),
    Planted(check="policy_jumps", config=PPO, overrides=("algorithm.lr=0.05", "run.env_steps=300")),
    Planted(
        check="values_explain_nothing",
        config=PPO,
        overrides=(
            "algorithm={value_coef: 0.0, gae_lambda: 1.0, num_epochs: 8}",
            "task={type: 'support.dense_reach:DistanceReach', max_steps: 8, tolerance: 0.001}",
        ),
    ),
)
