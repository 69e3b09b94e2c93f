"""Many worlds in one process: what they remember, that it learns, and a collector that goes on while it does."""

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
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.algorithms.ppo import PPO
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.processes.array_channel import ArrayChannel
from dovetail.runs.assembly.workcell import Workcell, build_workcell
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun, Interrupted
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_orders
from dovetail.runtime.onpolicy.worlds import World
from dovetail.weights.store import DiskWeightStore
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_policy, build_training

BROKEN = "task.type=support.dense_reach:Broken"


@pytest.fixture(autouse=True)
def _found_by_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "practice.yaml"
    path.write_text(PPO_RUN)
    return lambda *overrides: load([path], overrides)


@pytest.fixture
def make(config):
    made = []

    def make(*overrides, **settings):
        made.append(build_training(config(*overrides), **settings))
        return made[-1]

    yield make
    for practice in made:
        practice.close()


def collector_of(config, *, num_rollouts=0, worlds=MappingProxyType({})):
    practice = build_training(config)
    orders = collector_orders(config, practice._practice, num_rollouts=num_rollouts)
    return build_collector(orders, worlds), practice


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def flat(weights):
    return {f"{c}/{n}": v for c, arrays in weights.items() for n, v in arrays.items()}


# ---- collecting


def test_a_truncated_step_keeps_its_true_last_observation(config):
    """Trap: the observation after an automatic reset is another episode's."""
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


def test_a_success_is_an_end_and_no_truncation(config):
    collector, _ = collector_of(config("task.tolerance=0.2", "task.max_steps=50"))
    rollout = collector.collect()
    assert rollout["terminated"].sum() == rollout["episode/success"].sum() > 0
    assert len(rollout["final_at"]) == 0
    assert rollout["reward"][rollout["terminated"]].min() > 0.5  # the reward for it is of that step
    collector.close()


def test_episodes_go_on_from_one_rollout_to_the_next(config):
    collector, _ = collector_of(config("task.max_steps=20", "task.tolerance=0.0001"))
    first, second = collector.collect(), collector.collect()
    assert np.array_equal(first["observation/goal"][:, -1], second["observation/goal"][:, 0])
    assert second["final_at"].tolist() == [n * 16 + 3 for n in range(4)]
    assert second["episode/length"].tolist() == [20.0] * 4
    collector.close()


def test_worlds_differ_and_begin_each_episode_by_its_number(config):
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


def test_log_densities_and_versions_are_of_what_behaved(config):
    """Trap: a collector on weights that the optimiser writes to. It acts with what it was given, until it is given more."""
    collector, practice = collector_of(config())
    weights = practice.policy_weights()
    collector.load(weights, version=7)
    learners = practice._algorithm._policy
    with torch.no_grad():
        for module in learners.components.values():
            for parameter in module.parameters():
                parameter.add_(1.0)
    rollout = collector.collect()
    assert (rollout["version"] == 7).all()
    actor = build_policy(config(), weights)
    seen = {key: rollout[f"observation/{key}"][:, :-1].reshape(64, -1) for key in ("ee_pose", "goal")}
    with torch.no_grad():
        features = actor.features({key: torch.from_numpy(values) for key, values in seen.items()})
        log_prob, _, _ = actor.evaluate_actions(features, torch.from_numpy(rollout["action"]).flatten(0, 1))
    np.testing.assert_allclose(rollout["log_prob"].reshape(-1), log_prob.numpy(), rtol=1e-4, atol=1e-4)
    collector.close()


# ---- learning


@pytest.mark.parametrize("policy", ["actor_critic", "flow_actor_critic"])
def test_it_learns_to_reach(make, policy):
    hidden = "hidden: [32, 32]" if policy == "actor_critic" else "hidden: 32"
    chosen = f"policy={{type: {policy}, inputs: [ee_pose, goal], {hidden}, value_hidden: [32, 32]}}"
    practice = make(
        chosen, "algorithm.num_envs=8", "algorithm.rollout_steps=64", "algorithm.num_epochs=5", "run.seed=1"
    )
    returns = [practice.step().means()["return"] for _ in range(20)]
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 1.0


def test_the_same_seed_gives_the_same_weights(make):
    found = []
    for seed in (1, 1, 2):
        practice = make(f"run.seed={seed}")
        lessons = [practice.step() for _ in range(3)]
        found.append(
            (flat(practice.policy_weights()), [float(lesson.metrics["policy_loss"]) for lesson in lessons])
        )
    (a, a_losses), (b, b_losses), (c, _) = found
    assert same(a, b)
    assert a_losses == b_losses
    assert not same(a, c)


def test_a_resumed_learner_is_where_it_was(make):
    practice = make()
    for _ in range(3):
        practice.step()
    state = practice.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert (resumed.num_updates, resumed.env_steps, resumed.num_ended) == (3, 192, practice.num_ended)
    assert same(resumed.state_dict(), state)
    for _ in range(2):
        practice.step()
        resumed.step()
    assert same(resumed.state_dict(), practice.state_dict())  # each world in the midst of its episode


def test_a_resumed_simulator_goes_on_in_the_midst_of_its_episodes():
    """Real physics, with contact: begun again and sent the same actions, it stands where it stood."""
    settings = ["algorithm.num_envs=2", "algorithm.rollout_steps=12", "algorithm.num_epochs=2", "run.demos=0"]
    made = [build_training(load(["push-cube-ppo"], [*settings, "task.time_limit_s=2.0"])) for _ in range(2)]
    practice, resumed = made
    for _ in range(3):
        practice.step()
    assert practice.state_dict()["practice/worlds/num_sent"].min() > 0
    resumed.load_state_dict(practice.state_dict())
    for _ in range(2):
        practice.step()
        resumed.step()
    assert same(resumed.state_dict(), practice.state_dict())
    for one in made:
        one.close()


def test_a_rollout_that_is_not_finite_is_skipped_and_too_many_end_it(make):
    practice = make("learner.max_bad_updates=2")
    practice.step()
    collect = practice._source.collect

    def broken():
        rollout = collect()
        rollout["reward"][0, 0] = float("nan")
        return rollout

    practice._source.collect = broken
    before = practice.policy_weights()
    lesson = practice.step()
    assert lesson.metrics["skipped_updates"] == 1.0
    after = practice.policy_weights()
    assert all(same(before[c], after[c]) for c in before)
    practice._source.collect = collect
    lesson = practice.step()  # in step with its worlds: versions went on
    assert lesson.metrics["staleness_max"] == 0.0
    practice._source.collect = broken
    with pytest.raises(FailureError, match=r"learning broke at update 3: a rollout is not finite in reward"):
        practice.step()
    assert not practice.healthy


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("operator.type=scripted", "nobody can take over in ppo's many worlds at once"),
        ("labels=[{type: outcome, dense: true}]", "takes the task's own rewards at every tick"),
        ("labeling.hide_success=true", "labeling.hide_success=false"),
        ("run.demos=2", "shows a cloned policy another world than it was cloned in"),
    ],
)
def test_what_would_be_left_out_silently_is_refused(config, override, message):
    with pytest.raises(UsageError, match=message):
        build_training(config(override))


def test_imported_demonstrations_are_demonstrations(config, tmp_path):
    """With `run.demos=0` the config does not tell of them."""
    run = InlineRun(RunFolder.create(tmp_path / "a", config("learner.bc_updates=5")))
    run.collect(2)
    run.close()
    with pytest.raises(UsageError, match="shows a cloned policy another world than it was cloned in"):
        InlineRun(RunFolder.open(tmp_path / "a")).run()


def test_a_task_that_gives_up_ends_it(make):
    practice = make(BROKEN, "task.how=abort", "task.after=3")
    with pytest.raises(FailureError, match="gave up an episode of world 0"):
        practice.step()


# ---- collecting meanwhile


def test_staleness_stays_within_its_bound(make):
    practice = make("algorithm.asynchronous=true", "algorithm.max_staleness=1")
    staleness = []
    for _ in range(5):
        lesson = practice.step()
        staleness.append(lesson.metrics["staleness_max"])
        time.sleep(0.05)  # a slow learner: the collector would be far ahead by now
    assert staleness[0] == 0.0
    assert max(staleness) == 1.0
    time.sleep(0.5)
    assert (
        practice._source._rollouts.qsize() <= 2
    )  # of versions 5 and 6, which version 5 may collect; then it waits
    assert practice.num_updates == 5


def test_without_staleness_it_is_the_synchronous_one(make):
    weights = []
    for mode in ("algorithm.asynchronous=false", "algorithm.asynchronous=true"):
        practice = make(mode, "algorithm.max_staleness=0")
        for _ in range(3):
            lesson = practice.step()
        assert lesson.metrics["staleness_max"] == 0.0
        weights.append(flat(practice.policy_weights()))
    assert same(*weights)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "the collector has died: ValueError: the world has come apart"),
        ("kill", "the collector has died: killed by SIGKILL"),
    ],
)
def test_a_collector_that_dies_is_noticed(make, how, message):
    """Trap: the learner waited for ever."""
    practice = make("algorithm.asynchronous=true", BROKEN, f"task.how={how}", "task.after=20")
    began_s = time.monotonic()
    practice.step()  # 16 ticks of each world; the next 16 break
    for _ in range(2):  # and again, for whoever asks again
        with pytest.raises(FailureError, match=message):
            practice.step()
    assert time.monotonic() - began_s < 30


def test_a_collector_that_says_nothing_is_not_waited_for_for_ever(config):
    practice = build_training(config())
    orders = collector_orders(config(), practice._practice, num_rollouts=0)
    collector = ProcessCollector(orders, {}, patience_s=0.2)  # it gets no weights, and so does nothing
    with pytest.raises(FailureError, match="no rollout came from the collector in 0 s"):
        collector.collect()
    collector.close()
    assert collector.popen.returncode is not None


def test_a_stop_is_heard_while_waiting(make):
    practice = make("algorithm.asynchronous=true", should_stop=lambda: True)
    assert practice.step() is None


def test_a_collector_ends_with_its_learner(config, tmp_path):
    """However the learner ended."""
    code = (
        "import sys, os\nfrom dovetail.config.load import load\nfrom support.onpolicy_runs import build_training\n"
        "practice = build_training(load([sys.argv[1]], ['algorithm.asynchronous=true']))\n"
        "practice.step()\nprint(practice._source.popen.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    paths = os.pathsep.join((str(TESTS), os.environ["PYTHONPATH"]))
    config()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "practice.yaml")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pid = int(done.stdout)
    until_s = time.monotonic() + 20
    while Path(f"/proc/{pid}/cmdline").exists() and b"_collector" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_frames_carry_arrays_as_they_are():
    ours, theirs = ArrayChannel.pair()
    sent = {
        "none": np.zeros((0, 3), np.float32),
        "turned": np.arange(6).reshape(2, 3).T,
        "truth": np.array([True, False]),
        "one": np.array(5),
    }
    ours.send({"version": 3}, sent)
    assert theirs.waits()
    facts, got = theirs.receive()
    assert facts == {"version": 3}
    assert same(sent, got)
    assert all(array.flags.writeable for array in got.values())
    ours.close()
    theirs.close()


# ---- as a run


def test_a_run_practises_and_goes_on_after_an_interruption(config, tmp_path):
    stop = []
    seen = []

    def watch(status):
        seen.append(status.phase)
        if status.phase == "practising" and status.env_steps >= 128 and not stop:
            stop.append(True)

    folder = RunFolder.create(tmp_path / "a", config())
    with pytest.raises(Interrupted):
        InlineRun(folder, watch=watch, should_stop=lambda: stop == [True]).run()
    stop.append(False)
    run = InlineRun(RunFolder.open(tmp_path / "a"), watch=watch)
    run.run()
    assert "practising" in seen
    assert run.status.env_steps == 256
    assert run.status.updates == 4
    assert set(run.status.rates) == {"untrained", "after"}
    purposes = {EpisodeLog(folder.episodes).manifest(i).purpose for i in EpisodeLog(folder.episodes).ids()}
    assert purposes == {Purpose.EVAL}  # rollouts stay in memory
    assert DiskWeightStore(folder.weights).latest() is not None


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_interrupted_and_resumed_equals_uninterrupted(config, tmp_path, monkeypatch, error):
    """Between two updates, or in the midst of one. Trap: the algorithm's count of versions was one ahead for ever."""
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


def test_a_demonstrated_task_is_cloned_first(config, tmp_path):
    overrides = ("run.demos=2", "learner.bc_updates=5", "algorithm.normalize=false", "run.env_steps=64")
    run = InlineRun(RunFolder.create(tmp_path / "a", config(*overrides)))
    run.run()
    assert set(run.status.rates) == {"untrained", "cloning", "after"}


def test_practice_needs_a_simulator(config):
    whole = config()
    cell = build_workcell(task=whole.task, robot=whole.robot, safety=whole.safety)
    real = Workcell(task=cell.task, robot=cell.robot, clock=RealClock(), _raw=cell._raw)
    with pytest.raises(UsageError, match="on-policy rollouts come from simulators only"):
        World(real, number=0, num_worlds=1, seed=0)
