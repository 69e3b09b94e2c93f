"""On-policy learning: the contents of rollouts, learning, resuming, and collecting in another process."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.clock import RealClock
from dovetail.core.errors import CheckpointError, FailureError, Interrupted, UsageError
from dovetail.core.frozen_base import referenced_base
from dovetail.core.prompts import decode_prompt
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.algorithms.ppo import PPO
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.assembly.workcell import Workcell, build_workcell
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_settings
from dovetail.runtime.onpolicy.worlds import World, check_worlds
from dovetail.weights.store import DiskWeightStore
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_policy, build_training

BROKEN = "task.type=support.dense_reach:Broken"


@pytest.fixture(autouse=True)
def _importable_in_child_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(PPO_RUN)
    return lambda *overrides: load([path], overrides)


@pytest.fixture
def make(config):
    trainings = []

    def make(*overrides, **settings):
        trainings.append(build_training(config(*overrides), **settings))
        return trainings[-1]

    yield make
    for training in trainings:
        training.close()


def collector_of(config, *, num_rollouts=0, worlds=MappingProxyType({})):
    training = build_training(config)
    settings = collector_settings(config, training._rollouts, num_rollouts=num_rollouts)
    return build_collector(settings, worlds), training


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def flat(weights):
    return {f"{c}/{n}": v for c, arrays in weights.items() for n, v in arrays.items()}


# ---- collecting


def test_truncated_step_keeps_its_own_last_observation(config):
    """The observation after an automatic reset belongs to the next episode."""
    collector, _ = collector_of(config("task.max_steps=5", "task.tolerance=0.0001"))
    rollout = collector.collect()
    num_steps = 16
    assert rollout["final_at"].tolist() == [n * num_steps + t for n in range(4) for t in (4, 9, 14)]
    for row, at in enumerate(rollout["final_at"]):
        n, t = divmod(int(at), num_steps)
        goal, pose = rollout["observation/goal"][n], rollout["observation/ee_pose"][n]
        assert np.array_equal(rollout["final/goal"][row], goal[t])
        assert not np.array_equal(goal[t + 1], goal[t])
        assert 0 < np.abs(rollout["final/ee_pose"][row] - pose[t]).max() < 0.05
    assert not rollout["terminated"].any()
    assert rollout["episode/length"].tolist() == [5.0] * 12
    assert rollout["worlds/num_episodes"].tolist() == [4] * 4
    collector.close()


def test_success_terminates_and_does_not_truncate(config):
    collector, _ = collector_of(config("task.tolerance=0.2", "task.max_steps=50"))
    rollout = collector.collect()
    assert rollout["terminated"].sum() == rollout["episode/success"].sum() > 0
    assert len(rollout["final_at"]) == 0
    assert rollout["reward"][rollout["terminated"]].min() > 0.5  # the step of the success has its reward
    collector.close()


def test_episodes_continue_in_the_next_rollout(config):
    collector, _ = collector_of(config("task.max_steps=20", "task.tolerance=0.0001"))
    first, second = collector.collect(), collector.collect()
    assert np.array_equal(first["observation/goal"][:, -1], second["observation/goal"][:, 0])
    assert second["final_at"].tolist() == [n * 16 + 3 for n in range(4)]
    assert second["episode/length"].tolist() == [20.0] * 4
    collector.close()


def test_start_of_an_episode_depends_on_world_and_episode_number(config):
    collector, _ = collector_of(config("task.max_steps=8", "task.tolerance=0.0001"))
    goals = collector.collect()["observation/goal"]
    starts = [goals[n, t].tolist() for n in range(4) for t in (0, 8, 16)]
    assert len(set(map(tuple, starts))) == 12
    collector.close()
    resumed, _ = collector_of(
        config("task.max_steps=8", "task.tolerance=0.0001"),
        num_rollouts=1,
        worlds={"worlds/num_episodes": np.ones(4, np.int64)},
    )
    assert np.array_equal(resumed.collect()["observation/goal"][:, 0], goals[:, 8])
    resumed.close()


def test_log_probs_and_versions_are_of_the_policy_that_acted(config):
    """The collector has its own copy of the weights: the optimizer does not change them."""
    collector, training = collector_of(config())
    weights = training.policy_weights()
    collector.load(weights, version=7)
    learners = training._algorithm._policy
    with torch.no_grad():
        for module in learners.components.values():
            for parameter in module.parameters():
                parameter.add_(1.0)
    rollout = collector.collect()
    assert (rollout["version"] == 7).all()
    actor = build_policy(config(), weights)
    observations = {key: rollout[f"observation/{key}"][:, :-1].reshape(64, -1) for key in ("ee_pose", "goal")}
    with torch.no_grad():
        features = actor.features({key: torch.from_numpy(values) for key, values in observations.items()})
        log_prob, _, _ = actor.evaluate_actions(features, torch.from_numpy(rollout["action"]).flatten(0, 1))
    np.testing.assert_allclose(rollout["log_prob"].reshape(-1), log_prob.numpy(), rtol=1e-4, atol=1e-4)
    collector.close()


# ---- chunks and processes

CHUNKS = (
    "policy={type: valued_flow, inputs: [ee_pose, goal], history: {ee_pose: 2}, horizon: 4, hidden: 16, "
    "num_layers: 1, value_hidden: [8], prompt_features: 4}"
)


def test_episode_that_ends_inside_a_chunk(config):
    """Episodes of 6 steps in chunks of 4: the second chunk executes 2 actions, and the next one starts an episode."""
    collector, _ = collector_of(config(CHUNKS, "task.max_steps=6", "task.tolerance=0.0001"))
    rollout = collector.collect()
    assert rollout["num_executed"][0].tolist() == [4, 2] * 8
    assert rollout["final_at"].tolist() == [n * 16 + t for n in range(4) for t in range(1, 16, 2)]
    masks = rollout["observation/ee_pose/mask"][0]
    assert masks[0].tolist() == [False, True]  # an episode begins without history
    assert masks[1].tolist() == [True, True]
    assert masks[2].tolist() == [False, True]
    assert rollout["final/ee_pose"].shape == (32, 2, 7)
    assert rollout["log_prob"].shape == (4, 16, 4)
    assert rollout["episode/length"].tolist() == [6.0] * 32
    assert rollout["observation/prompt"].shape == (4, 17, 256)
    collector.close()


STAGED = (
    "task={type: 'dovetail.testing.staged_task:StagedTask', stages: [open, put], steps_per_stage: 3, max_steps: 6, "
    "tolerance: 0.0001}"
)


def test_each_chunk_has_the_prompt_of_its_first_step(config):
    """Episodes of 6 steps in chunks of 4. The prompt changes at step 3, inside the first chunk, which goes on."""
    collector, _ = collector_of(config(STAGED, CHUNKS))
    rollout = collector.collect()
    assert rollout["num_executed"][0].tolist() == [4, 2] * 8
    for world in rollout["observation/prompt"]:
        assert [decode_prompt(row) for row in world] == ["open", "put"] * 8 + ["open"]
    assert {decode_prompt(row) for row in rollout["final/prompt"]} == {"put"}
    collector.close()


def test_reward_of_a_chunk_is_discounted_and_some_actions_are_executed(config):
    settings = (CHUNKS, "actor.execution_horizon=2", "task.max_steps=50", "task.tolerance=0.0001")
    collector, _ = collector_of(config(*settings))
    rewards = []
    step = World.step

    def spy(self, action, **settings):
        observation, verdict = step(self, action, **settings)
        rewards.append(verdict.reward)
        return observation, verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "step", spy)
        rollout = collector.collect()
    assert (rollout["num_executed"] == 2).all()
    first_of_world_0 = rewards[0] + 0.95 * rewards[1]  # gamma of the run
    assert rollout["reward"][0, 0] == pytest.approx(first_of_world_0, rel=1e-5)
    assert len(rewards) == 4 * 16 * 2
    collector.close()


@pytest.mark.parametrize("policy", [CHUNKS, "run.seed=0"])
def test_rollouts_do_not_depend_on_the_number_of_processes(config, policy):
    found = []
    for num_processes in (1, 3):
        settings = (policy, f"algorithm.num_processes={num_processes}", "task.max_steps=10")
        collector, training = collector_of(config(*settings))
        collector.load(training.policy_weights(), version=1)
        found.append([collector.collect() for _ in range(2)])
        collector.close()
    for here, there in zip(*found, strict=True):
        assert same(here, there)


def test_resume_with_another_number_of_processes(make):
    training = make(CHUNKS)
    training.step()
    resumed = make(CHUNKS, "algorithm.num_processes=2")
    resumed.load_state_dict(training.state_dict())
    training.step()
    resumed.step()
    assert same(resumed.state_dict(), training.state_dict())


def test_killed_world_process_ends_the_run_with_one_line(make):
    training = make("algorithm.num_processes=2")
    training.step()
    os.kill(training._source._sources[1].process.pid, 9)
    with pytest.raises(FailureError, match="world process 1 has died: killed by SIGKILL"):
        training.step()


# ---- learning


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["actor_critic", "flow_actor_critic"])
def test_ppo_learns_to_reach(make, policy):
    hidden = "hidden: [32, 32]" if policy == "actor_critic" else "hidden: 32"
    chosen = f"policy={{type: {policy}, inputs: [ee_pose, goal], {hidden}, value_hidden: [32, 32]}}"
    training = make(
        chosen, "algorithm.num_envs=8", "algorithm.rollout_steps=64", "algorithm.num_epochs=5", "run.seed=1"
    )
    returns = [training.step().means()["return"] for _ in range(20)]
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 1.0


def test_same_seed_gives_the_same_weights(make):
    found = []
    for seed in (1, 1, 2):
        training = make(f"run.seed={seed}")
        results = [training.step() for _ in range(3)]
        found.append(
            (flat(training.policy_weights()), [float(result.metrics["policy_loss"]) for result in results])
        )
    (a, a_losses), (b, b_losses), (c, _) = found
    assert same(a, b)
    assert a_losses == b_losses
    assert not same(a, c)


def test_resumed_training_continues_identically(make):
    training = make()
    for _ in range(3):
        training.step()
    state = training.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert (resumed.num_updates, resumed.env_steps, resumed.num_ended) == (3, 192, training.num_ended)
    assert same(resumed.state_dict(), state)
    for _ in range(2):
        training.step()
        resumed.step()
    assert same(resumed.state_dict(), training.state_dict())  # also in the middle of episodes


def test_resumed_simulator_continues_unfinished_episodes_identically():
    """With real physics and contacts: the same actions restore the state of an episode."""
    settings = ["algorithm.num_envs=2", "algorithm.rollout_steps=12", "algorithm.num_epochs=2", "run.demos=0"]
    trainings = [build_training(load(["push-cube-ppo"], [*settings, "task.time_limit_s=2.0"])) for _ in range(2)]
    training, resumed = trainings
    for _ in range(3):
        training.step()
    assert training.state_dict()["practice/worlds/num_sent"].min() > 0
    resumed.load_state_dict(training.state_dict())
    for _ in range(2):
        training.step()
        resumed.step()
    assert same(resumed.state_dict(), training.state_dict())
    for training in trainings:
        training.close()


def test_non_finite_rollout_is_skipped_and_too_many_end_the_run(make):
    training = make("learner.max_bad_updates=2")
    training.step()
    collect = training._source.collect

    def broken():
        rollout = collect()
        rollout["reward"][0, 0] = float("nan")
        return rollout

    training._source.collect = broken
    before = training.policy_weights()
    result = training.step()
    assert result.metrics["skipped_updates"] == 1.0
    after = training.policy_weights()
    assert all(same(before[c], after[c]) for c in before)
    training._source.collect = collect
    result = training.step()  # a skipped update also makes a new version
    assert result.metrics["staleness_max"] == 0.0
    training._source.collect = broken
    with pytest.raises(FailureError, match=r"learning failed at update 3: the rollout is not finite in reward"):
        training.step()
    assert not training.healthy


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("operator.type=scripted", "an operator cannot take over in ppo's parallel worlds"),
        ("labels=[{type: outcome, dense: true}]", "uses the task's own reward at every tick"),
        ("labeling.hide_success=true", "labeling.hide_success=false"),
        ("run.demos=2", "changes the inputs of a policy that was cloned without it"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(config, override, message):
    with pytest.raises(UsageError, match=message):
        build_training(config(override))


def test_imported_demonstrations_are_checked_too(config, tmp_path):
    """The config has `run.demos=0`."""
    run = InlineRun(RunFolder.create(tmp_path / "a", config("learner.bc_updates=5")))
    run.collect(2)
    run.close()
    with pytest.raises(UsageError, match="changes the inputs of a policy that was cloned without it"):
        InlineRun(RunFolder.open(tmp_path / "a")).run()


def test_aborted_episode_ends_the_training(make):
    training = make(BROKEN, "task.how=abort", "task.after=3")
    with pytest.raises(FailureError, match="aborted an episode of world 0"):
        training.step()


# ---- asynchronous collection


@pytest.mark.extended
def test_staleness_stays_within_its_limit(make):
    training = make("algorithm.asynchronous=true", "algorithm.max_staleness=1")
    staleness = []
    for _ in range(5):
        result = training.step()
        staleness.append(result.metrics["staleness_max"])
        time.sleep(0.05)  # a slow learner: without the limit the collector would be far ahead
    assert staleness[0] == 0.0
    assert max(staleness) == 1.0
    time.sleep(0.5)
    assert training._source._rollouts.qsize() <= 2  # version 5 may collect rollouts 5 and 6, then it waits
    assert training.num_updates == 5


def test_asynchronous_without_staleness_equals_synchronous(make):
    weights = []
    for mode in ("algorithm.asynchronous=false", "algorithm.asynchronous=true"):
        training = make(mode, "algorithm.max_staleness=0")
        for _ in range(3):
            result = training.step()
        assert result.metrics["staleness_max"] == 0.0
        weights.append(flat(training.policy_weights()))
    assert same(*weights)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "the collector has died: ValueError: the world has come apart"),
        ("kill", "the collector has died: killed by SIGKILL"),
    ],
)
def test_end_of_the_collector_is_reported(make, how, message):
    training = make("algorithm.asynchronous=true", BROKEN, f"task.how={how}", "task.after=20")
    began_s = time.monotonic()
    training.step()  # 16 ticks of each world; the next 16 fail
    for _ in range(2):  # a second call fails too
        with pytest.raises(FailureError, match=message):
            training.step()
    assert time.monotonic() - began_s < 30


def test_waiting_for_a_rollout_has_a_timeout(config):
    training = build_training(config())
    settings = collector_settings(config(), training._rollouts, num_rollouts=0)
    collector = ProcessCollector(settings, {}, timeout_s=0.2)  # it gets no weights, so it does not start
    with pytest.raises(FailureError, match="the collector sent no rollout within 0 s"):
        collector.collect()
    collector.close()
    assert collector.process.popen.returncode is not None


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_frozen_component_is_read_by_the_collector(make, tmp_path, asynchronous):
    source = tmp_path / "weights"
    DiskWeightStore(source).publish(make().policy_weights())
    training = make(
        f"algorithm.asynchronous={asynchronous}",
        f"policy.components.actor.checkpoint={source}",
        "policy.components.actor.frozen=true",
    )
    assert training.step() is not None
    assert referenced_base(training.policy_weights()["actor"]) is not None


def test_stop_request_ends_the_wait_for_a_rollout(make):
    training = make("algorithm.asynchronous=true", should_stop=lambda: True)
    assert training.step() is None


@pytest.mark.extended
def test_collector_ends_when_its_learner_is_killed(config, tmp_path):
    code = (
        "import sys, os\nfrom dovetail.config.load import load\nfrom support.onpolicy_runs import build_training\n"
        "training = build_training(load([sys.argv[1]], ['algorithm.asynchronous=true']))\n"
        "training.step()\nprint(training._source.process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    paths = os.pathsep.join((str(TESTS), os.environ["PYTHONPATH"]))
    config()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ppo.yaml")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pid = int(done.stdout)
    until_s = time.monotonic() + 20
    while Path(f"/proc/{pid}/cmdline").exists() and b"collector" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until_s
        time.sleep(0.05)


# ---- whole runs


def test_interrupted_run_can_be_resumed(config, tmp_path):
    stop = []
    phases = []

    def watch(status):
        phases.append(status.phase)
        if status.phase == "learning online" and status.env_steps >= 128 and not stop:
            stop.append(True)

    folder = RunFolder.create(tmp_path / "a", config())
    with pytest.raises(Interrupted):
        InlineRun(folder, on_status=watch, should_stop=lambda: stop == [True]).run()
    stop.append(False)
    run = InlineRun(RunFolder.open(tmp_path / "a"), on_status=watch)
    run.run()
    assert "learning online" in phases
    assert run.status.env_steps == 256
    assert run.status.updates == 4
    assert set(run.status.evaluations) == {"untrained", "after"}
    purposes = {EpisodeLog(folder.episodes).manifest(i).purpose for i in EpisodeLog(folder.episodes).ids()}
    assert purposes == {Purpose.EVAL}  # rollouts are not recorded
    assert DiskWeightStore(folder.weights).latest() is not None


def test_checkpoints_are_kept_every_n_updates(config, tmp_path):
    """Updates are rollouts. A kept checkpoint holds the worlds too, so training continues from it exactly."""
    changes = ("run.checkpoint_every_updates=3",)
    InlineRun(RunFolder.create(tmp_path / "a", config(*changes))).run()
    checkpoints = tmp_path / "a" / "checkpoints"
    assert [path.name for path in checkpoints.glob("update-*")] == ["update-00000003"]
    state, _ = load_checkpoint(checkpoints / "update-00000003")
    resumed = build_training(config(*changes))
    resumed.load_state_dict(state)
    assert resumed.num_updates == 3
    resumed.step()
    last, _ = load_checkpoint(checkpoints / "last")
    expected, found = ({k: v for k, v in one.items() if "/policy/" in k} for one in (last, resumed.state_dict()))
    assert expected and same(expected, found)
    resumed.close()


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_interrupted_and_resumed_equals_uninterrupted(config, tmp_path, monkeypatch, error):
    """Interrupted between two updates, or during one."""
    overrides = ("run.untrained_episodes=0", "run.checkpoint_every_s=1e-6")
    InlineRun(RunFolder.create(tmp_path / "whole", config(*overrides))).run()
    step, count = PPO._step, iter(range(10**9))

    def broken(self, *arguments):
        if next(count) == 5:
            raise error
        return step(self, *arguments)

    asked, polls = iter(range(10**9)), 2 if error is Interrupted else 10**9
    run = InlineRun(
        RunFolder.create(tmp_path / "cut", config(*overrides)), should_stop=lambda: next(asked) >= polls
    )
    with monkeypatch.context() as patched:
        if error is KeyboardInterrupt:
            patched.setattr(PPO, "_step", broken)
        with pytest.raises(error):
            run.run()
    assert 0 < int(state_of(tmp_path / "cut")["practice/counters"][0]) < 4
    InlineRun(RunFolder.open(tmp_path / "cut")).run()
    assert same(state_of(tmp_path / "cut"), state_of(tmp_path / "whole"))


def state_of(folder):
    state, _ = load_checkpoint(folder / "checkpoints" / "last")
    return state


def test_demonstrations_are_cloned_first(config, tmp_path):
    overrides = ("run.demos=2", "learner.bc_updates=5", "algorithm.normalize=false", "run.env_steps=64")
    run = InlineRun(RunFolder.create(tmp_path / "a", config(*overrides)))
    run.run()
    assert set(run.status.evaluations) == {"untrained", "cloning", "after"}


def test_on_policy_learning_needs_a_simulator(config):
    whole = config()
    cell = build_workcell(task=whole.task, robot=whole.robot, safety=whole.safety)
    real = Workcell(task=cell.task, robot=cell.robot, clock=RealClock(), _raw=cell._raw)
    with pytest.raises(UsageError, match="on-policy learning needs a simulated robot"):
        World(real, spec=build_training(whole)._algorithm._policy.spec, number=0, num_worlds=1, seed=0)


GOOD = {
    "worlds/num_episodes": np.array([3, 2]),
    "worlds/num_sent": np.array([1, 2]),
    "worlds/sent": np.zeros((3, 4), np.float32),
}


def test_saved_state_of_worlds_is_accepted():
    check_worlds({}, num_worlds=2)
    check_worlds(GOOD, num_worlds=2)
    check_worlds({"worlds/num_episodes": np.array([3, 2])}, num_worlds=2)


@pytest.mark.parametrize(
    "change",
    [
        {"worlds/num_episodes": np.array([3])},
        {"worlds/num_episodes": np.array([3.0, 2.0])},
        {"worlds/num_episodes": np.array([3, -1])},
        {"worlds/num_sent": np.array([1, 1])},
        {"worlds/num_sent": np.array([2**62, 2**62 + 3])},
        {"worlds/num_sent": np.array([[1, 2]])},
        {"worlds/sent": np.zeros(3, np.float32)},
        {"worlds/sent": np.zeros((3, 4), np.int64)},
    ],
)
def test_state_of_other_worlds_in_a_checkpoint_is_refused_in_one_line(change):
    """A checkpoint may come from elsewhere."""
    with pytest.raises(CheckpointError, match="the checkpoint's worlds/"):
        check_worlds({**GOOD, **change}, num_worlds=2)


def test_collector_refuses_the_state_of_other_worlds(config):
    with pytest.raises(CheckpointError, match="does not belong to 4 worlds"):
        collector_of(config(), worlds={"worlds/num_episodes": np.array([3])})
