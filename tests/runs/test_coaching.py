"""The coach on whole runs that each have one problem; no advice on a good one."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dovetail.actor.actors import SequentialActor
from dovetail.config.load import load
from dovetail.core.errors import Interrupted
from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Outcome, Purpose, SampleRequest, View, WeightSnapshot
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import human_labels
from dovetail.labels.outcome import OutcomeLabeler
from dovetail.labels.store import LabelStore
from dovetail.learn.coach import Advice, CoachResult, Severity
from dovetail.learn.learner import Learner
from dovetail.learn.metrics import MetricsLog
from dovetail.reports.report import write_report
from dovetail.runs import coaching
from dovetail.runs.advice import open_advice
from dovetail.runs.assembly.build import Assembly
from dovetail.runs.coaching import Coaching, _next_name, batch_sources, settings_of
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.lamp_lighting_runs import lamp_episode, lamp_run
from support.toy_run import TOY

QUICK = (
    "run.eval_episodes=1",
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "learner={utd: 0.1, warmup_updates: 0, bc_updates: 0, start_from: scratch}",
)
ALONE = ("run.demos=0", "operator={type: none}")
FLAT = "policy={type: 'support.flawed_plugins:Flat', hidden: [16]}"
PPO_RUN = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 8, tolerance: 0.001}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [16, 16], value_hidden: [16, 16]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 8, batch_size: 32, num_epochs: 2}
run: {demos: 0, env_steps: 800, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}
"""


@pytest.fixture
def run(tmp_path):
    """A run to its end; gives its folder."""

    def run(*overrides, config=TOY, watch=lambda folder, status: None, resume=False):
        path = tmp_path / "toy.yaml"
        path.write_text(config)
        folder = (
            RunFolder.open(tmp_path / "run")
            if resume
            else RunFolder.create(tmp_path / "run", load([path], overrides))
        )
        InlineRun(folder, on_status=lambda status: watch(folder, status)).run()
        return folder

    return run


def advice_events(folder):
    return {event["name"]: event for event in folder.events("coach")}


@pytest.mark.extended
def test_good_run_gets_no_advice(run):
    solvable = ("task.tolerance=0.1", "run.eval_episodes=20")  # the policy succeeds alone in the last evaluation
    folder = run(*solvable, "run.env_steps=500", "learner={utd: 1, warmup_updates: 100, bc_updates: 200}")
    assert advice_events(folder) == {}
    assert write_report(folder).advice == ()
    assert len(list(folder.events("episode"))) > 15  # enough for every check to report


def test_unsolvable_task_gets_no_reward_advice(run):
    folder = run(*QUICK, *ALONE, "task.tolerance=1e-9", "task.max_steps=8", "run.env_steps=130")
    found = advice_events(folder)
    assert found["no_reward"]["severity"] == "warning"
    assert "None of the 12 online episodes so far earned a reward" in found["no_reward"]["evidence"]
    assert found["no_reward"]["try"] == f"dovetail run {folder.path}/config.yaml run.demos=20 --name run-2"
    assert found["no_reward"]["settings"] == {"run.demos": 20}


def test_wrong_labels_are_reported_as_disagreement(run):
    folder = run(*QUICK, "run.demos=0", "labels=[{type: 'support.flawed_plugins:Liar'}]", "run.env_steps=300")
    evidence = advice_events(folder)["rewards_disagree"]["evidence"]
    assert re.match(r"The labels of (\d+) of the last \1 episodes contradict", evidence)


def test_labels_without_a_trusted_outcome_are_not_compared(run):
    """Success is hidden, so there is no outcome that its labels could contradict."""
    folder = run(
        *QUICK,
        "labels=[{type: 'support.late_labelers:Witness'}]",
        "labeling.hide_success=true",
        "run.env_steps=500",
    )
    successes = [event["success"] for event in folder.events("episode")]
    assert sum(successes) >= 0.2 * len(successes)
    assert len(successes) >= 15
    assert "rewards_disagree" not in advice_events(folder)


def test_corrections_of_a_person_are_no_disagreement(run):
    corrected = set()

    def correct(folder, status):
        log = EpisodeLog(folder.episodes)
        for episode_id in set(log.ids()) - corrected:
            corrected.add(episode_id)
            info = log.manifest(episode_id)
            if info.purpose is Purpose.ONLINE and info.outcome is Outcome.TIMEOUT:
                labels = human_labels(
                    info.id, num_steps=info.num_steps, outcome=info.outcome, judgement=Outcome.SUCCESS, by="anna"
                )
                LabelStore(folder.labels).add(labels)

    folder = run(*QUICK, "operator={type: none}", "run.env_steps=500", watch=correct)
    assert sum(event["by"] == "human" for event in folder.events("labelled")) >= 10
    assert "rewards_disagree" not in advice_events(folder)


def test_overestimating_critic_is_reported(run):
    """Temperature 1 with entropy backup is a common mistake."""
    folder = run(
        *QUICK,
        "learner.utd=4",
        "run.env_steps=200",
        "algorithm={temperature: 1.0, backup_entropy: true, target_entropy: 4.0, gamma: 0.99, tau: 0.1}",
    )
    assert advice_events(folder)["q_above_returns"]["settings"] == {"algorithm.backup_entropy": False}


def test_policy_without_exploration_is_reported(run):
    folder = run(
        *QUICK,
        *ALONE,
        "learner.utd=0.5",
        "task.max_steps=8",
        "run.env_steps=120",
        "policy={type: 'support.flawed_plugins:Sure', hidden: [16]}",
    )
    evidence = advice_events(folder)["entropy_collapsed"]["evidence"]
    assert "(the target is -7.0), a standard deviation of 0.7 %" in evidence


def test_operator_who_always_takes_over_is_reported(run):
    folder = run(
        *QUICK,
        "operator={watched_share: 1.0, fade_out_minutes: 100000, stuck_after_steps: 1, min_progress: 10}",
        "operator.min_takeover_steps=60",
        "operator.max_takeover_steps=60",
        "run.env_steps=1100",
    )
    found = advice_events(folder)
    assert "gets no chance to act alone" in found["help_not_falling"]["cause"]
    assert "a person's" in found["one_source"]["evidence"]


def test_empty_replay_is_reported_as_starving_updates(run):
    folder = run(*QUICK, *ALONE, "learner.utd=2", "algorithm={type: hg_dagger}", "run.env_steps=200")
    found = advice_events(folder)["updates_starving"]
    assert "and 0 are done" in found["evidence"]
    assert found["settings"] == {"run.demos": 20}


def test_learner_ahead_of_its_data_is_reported(run, monkeypatch):
    step = Learner.step

    def free(self, *, env_steps, on_update=lambda: None):
        return step(self, env_steps=env_steps + 400, on_update=on_update)

    monkeypatch.setattr(Learner, "step", free)
    folder = run(*QUICK, "learner.utd=1", "run.env_steps=60")
    assert "the same few steps" in advice_events(folder)["updates_racing"]["cause"]


class Time:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s


def test_waiting_robot_is_reported(run, monkeypatch):
    time, act, step = Time(), SequentialActor.run, Learner.step

    def takes(work, seconds):
        def slow(*arguments, **options):
            time.now_s += seconds
            return work(*arguments, **options)

        return slow

    monkeypatch.setattr(coaching, "time", time)
    monkeypatch.setattr(Assembly, "real_time", True)
    monkeypatch.setattr(SequentialActor, "run", takes(act, 1.0))
    monkeypatch.setattr(Learner, "step", takes(step, 9.0))
    folder = run(*QUICK, "run.env_steps=300")
    assert advice_events(folder)["robot_waits"]["evidence"] == "It waits 90 % of the time"


@pytest.mark.parametrize("labels", ["outcome", "{type: 'support.late_labelers:Late'}"])
def test_pinned_weights_are_reported_as_stale(run, labels):
    def pin(folder, status):
        if status.episodes == 1:
            DiskWeightStore(folder.weights).pin(1)

    folder = run(*QUICK, f"labels=[{labels}]", "run.env_steps=350", watch=pin)
    found = advice_events(folder)["stale_weights"]
    assert "versions old, and version 1 is pinned" in found["evidence"]
    assert found["try"] == f"rm {folder.path}/weights/pin.json"


def test_rarely_published_weights_are_reported_as_stale(run):
    folder = run(*QUICK, "learner.utd=1", "learner.publish_every=1000000", "run.env_steps=500")
    found = advice_events(folder)["stale_weights"]
    assert "updates old" in found["evidence"]
    assert found["settings"] == {"learner.publish_every": None}


def test_observations_outside_the_demonstrations_are_reported(run):
    folder = run(
        *QUICK, "robot={type: 'support.flawed_plugins:Moved'}", "operator={type: none}", "run.env_steps=250"
    )
    assert "% of the values of 'goal'" in advice_events(folder)["out_of_range"]["evidence"]


@pytest.mark.parametrize("labels", ["outcome", "{type: 'support.late_labelers:Late'}"])
def test_policy_at_the_action_limits_is_reported(run, labels):
    folder = run(*QUICK, *ALONE, FLAT, f"labels=[{labels}]", "run.env_steps=400")
    assert "full speed only" in advice_events(folder)["saturated"]["cause"]


@pytest.mark.parametrize("actor_after", [0, 2])
def test_on_policy_learning_gets_advice(run, actor_after):
    """A rollout before `actor_after` has fewer metrics."""
    folder = run("algorithm.lr=0.05", f"algorithm.actor_after={actor_after}", "run.env_steps=300", config=PPO_RUN)
    found = advice_events(folder)
    assert found["no_reward"]["severity"] == "warning"
    assert found["policy_jumps"]["settings"] == {"algorithm.lr": 0.0003}


def test_useless_value_network_is_reported(run):
    folder = run(
        "algorithm={value_coef: 0.0, gae_lambda: 1.0}",
        "task={type: 'support.dense_reach:DenseReach', max_steps: 8, tolerance: 0.001}",
        config=PPO_RUN,
    )
    (advice,) = open_advice(folder)
    assert advice.name == "values_explain_nothing"
    assert advice.settings == {"algorithm.value_coef": 0.5, "algorithm.value_lr": 0.001}


PENDULUM = """
robot: {type: gym, id: Pendulum-v1, max_steps: 30}
policy: {type: gaussian_mlp, hidden: [16]}
algorithm: {type: sac, batch_size: 32, hidden: [16]}
learner: {utd: 0.1, warmup_updates: 0, bc_updates: 0, start_from: scratch}
run: {demos: 0, env_steps: 450, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}
"""


def test_pendulum_is_told_to_use_its_reward_and_nothing_about_demonstrations(run):
    """It rewards every step, has no success and no expert."""
    folder = run(config=PENDULUM)
    (advice,) = open_advice(folder)
    assert advice.name == "reward_not_used"
    assert advice.settings == {"labels": [{"type": "outcome", "dense": True}]}
    assert "demonstration" not in advice.message


def test_pendulum_with_dense_labels_is_not_told_that_it_fails(run):
    folder = run("labels=[{type: outcome, dense: true}]", config=PENDULUM)
    assert advice_events(folder) == {}


def test_run_that_is_too_short_to_succeed_ends_with_advice(run):
    folder = run(*QUICK, *ALONE, "task.tolerance=1e-9", "task.max_steps=8", "run.env_steps=20")
    (advice,) = open_advice(folder)
    assert advice.name == "never_succeeds"
    assert advice.settings == {"run.env_steps": 1000}
    assert write_report(folder).advice == (advice,)


@pytest.mark.parametrize(
    ("taken", "name", "expected"),
    [
        ((), "first", "first-2"),
        (("first-2", "first-3"), "first", "first-4"),
        ((), "first-2", "first-3"),
        ((), "config-20261118-022359", "config-20261118-022359-2"),
    ],
)
def test_name_of_the_next_run_has_the_next_free_number(tmp_path, taken, name, expected):
    for other in taken:
        (tmp_path / other).mkdir()
    assert _next_name(tmp_path / name) == expected


@pytest.mark.parametrize(("num_successes", "has_advice"), [(0, True), (1, False), (None, False)])
def test_last_evaluation_decides_whether_a_run_with_a_lucky_success_ends_with_advice(
    run, num_successes, has_advice
):
    folder = run(*QUICK, *ALONE, "task.tolerance=10.0", "run.env_steps=40")  # every episode succeeds
    assert advice_events(folder) == {}
    again = InlineRun(folder)
    again.status.remember_score(EpisodeScore(success=True, duration_s=1.0), human_share=0.0, has_success=True)
    again.runtime.conclude(num_successes)
    again.close()
    found = advice_events(folder)
    assert ("never_succeeds" in found) == has_advice
    if has_advice:
        assert found["never_succeeds"]["cause"].endswith("the last evaluation has no success")


# ---- in another process


def interrupt_once(name):
    """A status listener that interrupts the run when advice `name` appears."""
    pending = {name}

    def watch(folder, status):
        if pending & set(advice_events(folder)):
            pending.clear()
            raise Interrupted

    return watch


def names(folder, kind):
    return [event["name"] for event in folder.events(kind)]


def test_advice_continues_after_a_resume(run):
    """The facts of single steps are not stored, so a resumed run lacks those of earlier episodes."""
    watch = interrupt_once("saturated")
    with pytest.raises(Interrupted):
        run(*QUICK, *ALONE, FLAT, "run.env_steps=1000", watch=watch)
    folder = run(resume=True)
    assert len(list(folder.events("episode"))) > 20  # the first process recorded about 12 of them
    assert names(folder, "coach").count("saturated") == 1
    assert "saturated" not in names(folder, "coach: over")


def test_resumed_on_policy_learning_starts_without_episodes(run):
    with pytest.raises(Interrupted):
        run(
            *("task.max_steps=32", "task.tolerance=1e-9", "run.env_steps=2000"),
            config=PPO_RUN,
            watch=interrupt_once("no_reward"),
        )
    folder = run(config=PPO_RUN, resume=True)
    assert names(folder, "coach").count("no_reward") == 1
    assert "no_reward" not in names(folder, "coach: over")


# ---- where advice appears


def test_advice_is_in_events_metrics_report_and_after_a_resume(run):
    overrides = (*QUICK, *ALONE, "task.tolerance=1e-9", "task.max_steps=8", "run.env_steps=130")
    shown = []
    folder = run(*overrides, watch=lambda _, status: shown.append([advice.name for advice in status.advice]))
    assert shown[0] == []
    assert shown[-1] == ["no_reward"]
    curves = EventAccumulator(str(folder.logs))
    curves.Reload()
    course = [event.value for event in curves.Scalars("coach/no_reward")]
    assert course[0] == 0.0
    assert course[-1] == 1.0
    assert len(course) == len(list(folder.events("episode")))
    assert "coach/text_summary" in curves.Tags()["tensors"]
    advice = write_report(folder).advice
    written = json.loads((folder.path / "report.json").read_text())["advice"]
    assert [entry["name"] for entry in written] == ["no_reward"]
    run(resume=True)
    assert len(list(folder.events("coach"))) == 1  # a resume does not repeat it
    assert open_advice(folder) == advice


def test_ended_advice_is_not_in_the_report(tmp_path):
    folder = RunFolder.create(tmp_path / "run", load(["peg-insertion"]))
    worse = Advice(name="no_reward", severity=Severity.WARNING, cause="none", evidence="0 of 9", command="more")
    hint = Advice(name="saturated", severity=Severity.HINT, cause="fast", evidence="9 of 9", command="slow")
    for advice in (hint, worse):
        folder.event("coach", env_steps=1, **advice.to_json())
    assert open_advice(folder) == (worse, hint)  # the worst first
    folder.event("coach: over", env_steps=2, name="no_reward")
    assert open_advice(folder) == (hint,)
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "event": "coach", "na')  # killed while writing
    assert open_advice(folder) == (hint,)


# ---- how facts are collected


@pytest.fixture
def checked(monkeypatch):
    """The facts of each check."""
    checked = []

    def check(self, facts):
        checked.append(facts)
        return CoachResult(begun=(), over=())

    monkeypatch.setattr(coaching.Coach, "check", check)
    return checked


@pytest.fixture
def setup(tmp_path):
    """A `Coaching`, an episode with its labels, and weights of any version."""
    episode = lamp_episode(0, success=True)
    folder = lamp_run(tmp_path / "run", [episode])
    policy = SimpleNamespace(spec=SimpleNamespace(horizon=1, action=episode.robot.action))
    metrics = MetricsLog(folder.logs)
    coach = Coaching(folder, status=RunStatus(name="run"), metrics=metrics, policy=policy, real_time=True)
    known = EpisodeRecord(
        info=EpisodeLog(folder.episodes).manifest(episode.id), labels=OutcomeLabeler().label(episode)
    )

    def weights(version):
        normalizer = {"mean/meter": np.full(2, 1000.0 - 1000.0 * (version - 1)), "std/meter": np.ones(2)}
        return WeightSnapshot(version=version, components={"normalizer": normalizer}, hashes={})

    yield SimpleNamespace(coach=coach, episode=episode, known=known, weights=weights)
    metrics.close()


def check(coach, *, updates=0):
    learner = SimpleNamespace(
        sample_request=request({View(): 8}), num_online_updates=updates, owed=lambda steps: 0
    )
    coach.check(learner, ReplaySizes())


def test_step_facts_are_taken_when_the_episode_ends(checked, setup):
    """When labels arrive later, weights and statistics have changed and the episode is not in memory."""
    coach, newest = setup.coach, 60
    coach.published(1, setup.weights(1), updates=0)
    coach.acted(setup.episode)
    coach.count(replace(setup.known, labels=None))
    coach.published(newest, setup.weights(newest), updates=0)
    coach.correct(setup.known)
    check(coach)
    (facts,) = checked[-1].episodes
    assert (facts.versions_behind, facts.saturated, facts.outside) == (0, 0.0, {"meter": 0.0})
    coach.correct(replace(setup.known, labels=replace(setup.known.labels, discard=True)))
    coach.correct(setup.known)  # not discarded after all
    check(coach)
    assert checked[-1].episodes == (facts,)


def test_step_facts_of_old_episodes_are_forgotten(setup):
    for number in range(coaching._NUM_PENDING + 10):
        setup.coach.acted(replace(setup.episode, id=str(number)))
    assert list(setup.coach._step_facts) == [str(number) for number in range(10, coaching._NUM_PENDING + 10)]


def test_without_published_weights_no_version_is_behind(checked, setup):
    """A restarted store."""
    setup.coach.acted(setup.episode)
    setup.coach.count(setup.known)
    check(setup.coach)
    assert checked[-1].episodes[0].versions_behind is None
    assert checked[-1].unpublished is None


def test_times_are_reported_after_num_timed_episodes(checked, setup):
    """The first episodes after a resume include startup time."""
    for _ in range(coaching._NUM_TIMED):
        setup.coach.acted(setup.episode)
        check(setup.coach)
    assert [facts.act_s is None for facts in checked] == [True] * (coaching._NUM_TIMED - 1) + [False]


def test_updates_since_the_newest_weights_are_counted(checked, setup):
    setup.coach.published(1, setup.weights(1), updates=40)
    for updates in (100, 30):  # weights can arrive before the count of their updates
        check(setup.coach, updates=updates)
    assert [facts.unpublished for facts in checked] == [60, 0]


class ReplaySizes:
    """A replay with sizes only: 100 steps of demonstrations, 50 of operators, 150 of the policy."""

    def __init__(self, *, demo=100, human=50, policy=150):
        prior, online = demo + human, human + policy
        self._sizes = {"demo": demo, "human": human, "policy": policy, "prior": prior, "online": online}
        self._sizes["all"] = demo + online

    def size(self, view):
        return self._sizes[view.part]


def request(rows, **other):
    return SampleRequest(observation_keys=("state",), rows=rows, **other)


def test_batch_shares_by_source_match_hand_computed_values():
    half = request({View(part="prior"): 64, View(part="online"): 64})
    shares = batch_sources(half, ReplaySizes())
    # demo: 64 * 100/150; human: 64 * 50/150 + 64 * 50/200; policy: 64 * 150/200
    np.testing.assert_allclose([shares[h] for h in ("demo", "human", "policy")], [1 / 3, 7 / 24, 3 / 8])
    assert batch_sources(request({View(part="online", return_above=0.5): 64}), ReplaySizes()) == {}
    alone = batch_sources(request(half.rows, when_empty=View()), ReplaySizes(demo=0, human=0))
    assert alone == {"demo": 0.0, "human": 0.0, "policy": 1.0}


def test_settings_have_dotted_keys():
    assert settings_of({"run": {"seed": 1}, "labels": [{"type": "outcome"}], "task": None}) == {
        "run.seed": 1,
        "labels": [{"type": "outcome"}],
        "task": None,
    }
