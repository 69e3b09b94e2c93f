"""Each check at its threshold; when problems are reported; and what advice proposes."""

import math
import shlex

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.plugins import config_model, list_plugins, resolve
from dovetail.config.schema import SECTION_KINDS
from dovetail.learn._coach_checks import CHECKS
from dovetail.learn._coach_facts import UNKNOWN, DemoFacts, EpisodeFacts, Facts, Finding, Offers
from dovetail.learn.coach import PATIENCE, REMIND, Advice, Coach, Severity, overrides_of, returns_to_go
from dovetail.runs.coaching import settings_of

GAMMA = 0.9


def episodes(num, *, success=False, rewarded=True, solved=None, **facts):
    solved = success if solved is None else solved
    return (EpisodeFacts(success=success, rewarded=rewarded, solved=solved, **facts),) * num


def facts(*parts, num_episodes=None, settings=None, **more):
    known = sum(parts, ())
    return Facts(
        settings=settings or {},
        num_episodes=len(known) if num_episodes is None else num_episodes,
        env_steps=1000,
        episodes=known,
        **more,
    )


def critic(q, **more):
    return facts(episodes(20), metrics={"q": q}, lowest_value=0.0, largest_reward=1.0, **more)


def actor(entropy, *, success=False, **more):
    metrics = {"entropy": entropy} | ({"target_entropy": more.pop("target")} if "target" in more else {})
    return facts(episodes(10, success=success), metrics=metrics, num_actions=2, **more)


def spread(std):
    """The entropy of two Gaussian numbers."""
    return 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(std))


def source(name, share, **more):
    rest = {"demo": 0.0, "human": 0.0, "policy": 0.0, name: share}
    return facts(episodes(10), metrics={"q": 0.0}, sources=rest, **more)


def unpublished(num, *, utd=2.0, num_episodes=20, **more):
    settings = {"learner.utd": utd, "learner.publish_every": 10**6}
    known = episodes(num_episodes, versions_behind=0)
    return facts(known, unpublished=num, num_episodes=num_episodes, settings=settings, **more)


def fit(loss, variance=0.1, *, updates=500, **more):
    metrics = {"critic_loss": loss, "target_variance": variance}
    return facts(episodes(20), metrics=metrics, updates=updates, largest_reward=1.0, **more)


def timed(period_s=0.1, late=0.0, delay_ticks=1.0, **more):
    known = episodes(10, period_s=period_s, late=late, delay_ticks=delay_ticks)
    return facts(known, offers=Offers(control_hz=10.0), **more)


def informed(now, other, **more):
    demos = DemoFacts(num=10, explained={"": now, "goal": other})
    offers = Offers(inputs=("pose",), observations=("pose", "goal"))
    return facts(episodes(10), demos=demos, offers=offers, **more)


def returns(early, latest, *, num_episodes=60, **more):
    """A task without success: 20 early returns around a mean with a standard deviation of 1, and 20 late ones."""
    spread = tuple(early + (-1.0) ** i for i in range(20))
    return facts(
        episodes(20, total=latest),
        early_totals=spread,
        num_episodes=num_episodes,
        offers=Offers(success=False),
        **more,
    )


SPARSE = {"algorithm.gamma": 0.97, "labels": [{"type": "outcome"}]}
RANGE = {"algorithm.target_range": [0.0, 1.0]}
PRIOR = {"algorithm.prior_fraction": 0.5}

# check, facts with the problem, and facts just on the other side of its threshold
CASES = [
    ("labels_waiting", facts(waiting={"away": 3}, num_episodes=3), facts(waiting={"away": 2}, num_episodes=3)),
    (
        "labels_waiting",
        facts(episodes(30), waiting={"uncertain": 8, "new": 2}, num_episodes=50),
        facts(episodes(30), waiting={"uncertain": 8, "new": 2}, num_episodes=51),
    ),
    ("no_reward", facts(episodes(10, rewarded=False)), facts(episodes(9, rewarded=False))),
    (
        "no_reward",
        facts(episodes(1), episodes(40, rewarded=False)),
        facts(episodes(1), episodes(39, rewarded=False)),
    ),
    (
        "rewards_disagree",
        facts(episodes(8), episodes(2, success=True, solved=False)),
        facts(episodes(9), episodes(1, success=True, solved=False)),
    ),
    (
        "rewards_disagree",  # the labels agree, but loitering is worth more
        facts(episodes(3, success=True, value=1.0), episodes(3, value=1.0)),
        facts(episodes(3, success=True, value=1.01), episodes(3, value=1.0)),
    ),
    ("q_above_returns", critic(0.91, best_value=0.6), critic(0.89, best_value=0.6)),
    # a new critic is near 0
    ("q_above_returns", critic(0.31, best_value=-0.5), critic(0.29, best_value=-0.5)),
    # at the bound that its targets are clipped to, where no episode came near it
    (
        "q_above_returns",
        critic(0.99, best_value=0.8, settings=RANGE),
        critic(0.97, best_value=0.8, settings=RANGE),
    ),
    (
        "q_above_returns",
        critic(0.99, best_value=0.8, settings=RANGE),
        critic(0.99, best_value=0.95, settings=RANGE),
    ),
    ("entropy_collapsed", actor(-4.1, target=-2.0), actor(-3.9, target=-2.0)),
    ("entropy_collapsed", actor(-4.1, target=-2.0), actor(-4.1, target=-2.0, success=True)),
    ("entropy_collapsed", actor(spread(0.029)), actor(spread(0.031))),
    (
        "help_not_falling",
        facts(episodes(20, human_share=0.4), num_episodes=60, early_human=0.44),
        facts(episodes(20, human_share=0.4), num_episodes=60, early_human=0.45),
    ),
    (
        "help_not_falling",
        facts(episodes(20, human_share=0.31), num_episodes=60, early_human=0.3),
        facts(episodes(20, human_share=0.29), num_episodes=60, early_human=0.3),
    ),
    ("one_source", source("human", 0.91), source("human", 0.89)),
    ("one_source", source("demo", 0.91), source("demo", 0.89)),
    (
        "one_source",
        source("policy", 1.0, settings=PRIOR, offers=Offers(expert=True)),
        source("policy", 1.0, offers=Offers(expert=True)),  # without prior data on purpose
    ),
    (
        "one_source",
        source("policy", 1.0, settings=PRIOR, offers=Offers(expert=True)),
        source("policy", 1.0, settings=PRIOR),  # nobody can demonstrate
    ),
    (
        "reward_not_used",
        facts(episodes(10, unused_reward=True), settings=SPARSE),
        facts(episodes(10, unused_reward=True), settings={}),  # imitation
    ),
    (
        "reward_not_used",
        facts(episodes(5, success=True, unused_reward=True), episodes(5, unused_reward=True), settings=SPARSE),
        facts(episodes(6, success=True, unused_reward=True), episodes(4, unused_reward=True), settings=SPARSE),
    ),
    (
        "never_succeeds",
        facts(episodes(40), num_episodes=40),
        facts(episodes(39), episodes(1, success=True), num_episodes=40),
    ),
    ("never_succeeds", facts(episodes(40), num_episodes=40), facts(episodes(39), num_episodes=39)),
    ("return_not_rising", returns(5.0, 5.25), returns(5.0, 5.26)),
    ("return_not_rising", returns(5.0, 5.25), returns(5.0, 5.25, num_episodes=59)),
    (
        "help_too_late",
        facts(episodes(5, first_help=0.6), episodes(5)),
        facts(episodes(5, first_help=0.59), episodes(5)),
    ),
    (
        "help_too_late",
        facts(episodes(5, first_help=0.9), episodes(5)),
        facts(episodes(4, first_help=0.9), episodes(6)),
    ),
    ("observations_lack_information", informed(0.5, 0.71), informed(0.5, 0.7)),
    ("observations_lack_information", informed(0.09, 0.1), informed(0.1, 0.1)),
    (
        "limits_too_small",
        facts(episodes(10, clipped={"step": 0.51})),
        facts(episodes(10, clipped={"step": 0.5})),
    ),
    (
        "limits_too_small",
        facts(episodes(6, human_share=0.5, human_saturated=0.9, timeout=True), episodes(4)),
        facts(episodes(6, human_share=0.5, human_saturated=0.89, timeout=True), episodes(4)),
    ),
    ("clock_wrong", timed(period_s=0.126), timed(period_s=0.124)),
    ("clock_wrong", timed(late=0.21), timed(late=0.2)),
    ("clock_wrong", timed(delay_ticks=4.0), timed(delay_ticks=3.0)),
    ("clock_wrong", timed(delay_ticks=4.0), timed(delay_ticks=4.0, settings={"safety.delay_s": 0.4})),
    ("critic_does_not_fit", fit(0.091), fit(0.089)),
    ("critic_does_not_fit", fit(0.091), fit(0.091, updates=499)),
    ("updates_starving", facts(updates=100, owed=101), facts(updates=101, owed=101)),
    ("updates_starving", facts(updates=0, owed=100), facts(updates=0, owed=99)),
    ("updates_racing", facts(updates=1000, owed=-501), facts(updates=1000, owed=-500)),
    (
        "robot_waits",
        facts(episodes(10), act_s=1.0, learn_s=3.1),
        facts(episodes(10), act_s=1.0, learn_s=3.0),
    ),
    ("stale_weights", facts(episodes(3, versions_behind=10)), facts(episodes(3, versions_behind=9))),
    ("stale_weights", facts(episodes(3, versions_behind=10)), facts(episodes(2, versions_behind=10))),
    # 20 episodes of 50 steps, two updates each: ten earn a thousand
    ("stale_weights", unpublished(1000), unpublished(999)),
    (
        "stale_weights",
        facts(episodes(3, versions_behind=10)),
        facts(episodes(3, versions_behind=10), settings={"deploy.gate": "compare"}),
    ),
    ("stale_weights", unpublished(100, utd=0.1), unpublished(99, utd=0.1)),
    ("stale_weights", unpublished(1000), unpublished(1000, num_episodes=9)),
    ("out_of_range", facts(episodes(5, outside={"a": 0.26})), facts(episodes(5, outside={"a": 0.25}))),
    ("saturated", facts(episodes(10, saturated=0.81)), facts(episodes(10, saturated=0.79))),
    (
        "values_explain_nothing",
        facts(updates=20, metrics={"explained_variance": 0.05}),
        facts(updates=20, metrics={"explained_variance": 0.06}),
    ),
    (
        "policy_jumps",
        facts(metrics={"kl": 0.11, "clip_fraction": 0.1}),
        facts(metrics={"kl": 0.1, "clip_fraction": 0.5}),
    ),
]


@pytest.mark.parametrize(("name", "bad", "good"), CASES)
def test_each_check_at_its_threshold(name, bad, good):
    assert isinstance(CHECKS[name](bad), Finding)
    assert not isinstance(CHECKS[name](good), Finding)


def test_every_check_has_a_case_and_is_unknown_without_facts():
    assert {name for name, _, _ in CASES} == set(CHECKS)
    results = {name: check(facts()) for name, check in CHECKS.items()}
    assert results.pop("labels_waiting") is None  # nothing waits
    assert results.pop("return_not_rising") is None  # the task has success
    assert set(results.values()) == {UNKNOWN}


RESUMED = episodes(20, human_share=0.5)  # of an earlier process: facts of steps and of the learner are missing


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("rewards_disagree", (EpisodeFacts(success=True, rewarded=True),) * 20),  # without a judgment
        ("q_above_returns", RESUMED),
        ("entropy_collapsed", RESUMED),
        ("help_not_falling", RESUMED[:19]),
        ("one_source", RESUMED),
        ("robot_waits", RESUMED),
        ("stale_weights", RESUMED),
        ("stale_weights", (*RESUMED, *episodes(2, versions_behind=0))),
        ("out_of_range", (*RESUMED, *episodes(4, outside={"a": 0.0}))),
        ("saturated", (*RESUMED, *episodes(9, saturated=0.0))),
        ("values_explain_nothing", RESUMED),
        ("policy_jumps", RESUMED),
    ],
)
def test_missing_facts_give_unknown(name, missing):
    assert CHECKS[name](facts(missing, num_episodes=100, early_human=0.5)) is UNKNOWN


def test_success_rate_is_unknown_after_a_resume():
    known = {"updates": 20, "metrics": {"explained_variance": 0.0}, "num_episodes": 500}
    assert CHECKS["values_explain_nothing"](facts(episodes(9, success=True), **known)) is UNKNOWN
    assert CHECKS["values_explain_nothing"](facts(episodes(10, success=True), **known)) is None


def test_messages_contain_the_numbers():
    finding = CHECKS["rewards_disagree"](
        facts(episodes(7), episodes(2, success=True, solved=False), episodes(1, success=False, solved=True))
    )
    assert finding.evidence == (
        "The labels of 3 of the last 10 episodes contradict their outcome: 1 successes labeled as failures, 2 failures "
        "labeled as successes"
    )
    racing = CHECKS["updates_racing"](facts(updates=1000, owed=-600))
    assert racing.evidence == "1000 updates are done, and 1000 online steps have earned 400"


def test_advice_for_unpublished_weights_names_pin_or_publish_every():
    for bad, tried in (
        (unpublished(1000), "dovetail run RUN/config.yaml learner.publish_every=null"),
        (unpublished(1000, pinned=0), "rm RUN/weights/pin.json"),
    ):
        finding = CHECKS["stale_weights"](bad)
        assert "1000 updates old" in finding.evidence
        assert Advice.of("stale_weights", finding, bad).command == tried


# ---- when problems are reported


BAD, GOOD = facts(updates=0, owed=500), facts(updates=0, owed=0)


def test_problem_is_reported_once_and_again_when_over():
    coach = Coach()
    results = [coach.check(BAD) for _ in range(PATIENCE + 5)]
    assert [len(result.begun) for result in results] == [0] * (PATIENCE - 1) + [1] + [0] * 5
    assert [advice.name for advice in coach.current] == ["updates_starving"]
    assert coach.check(GOOD).over == ()  # one good result does not end it
    assert coach.check(BAD).begun == ()
    results = [coach.check(GOOD) for _ in range(PATIENCE)]
    assert [len(result.over) for result in results] == [0] * (PATIENCE - 1) + [1]
    assert coach.current == ()
    again = [len(coach.check(BAD).begun) for _ in range(PATIENCE)]
    assert again == [0] * (PATIENCE - 1) + [1]


def test_open_problem_is_reported_again_after_many_checks():
    coach = Coach()
    reported = [number for number in range(2 * REMIND) if coach.check(BAD).begun]
    assert reported == [PATIENCE - 1, PATIENCE - 1 + REMIND]


def test_problem_of_an_earlier_process_is_not_reported_again():
    advice = Advice(name="updates_starving", severity=Severity.WARNING, cause="c", evidence="e", command="t")
    gone = Advice(name="of an older version", severity=Severity.HINT, cause="c", evidence="e", command="t")
    coach = Coach([Advice.from_json(advice.to_json()), gone])
    assert coach.current == (advice,)
    assert not any(coach.check(BAD).begun for _ in range(PATIENCE))
    assert [coach.check(GOOD).over for _ in range(PATIENCE)][-1] == (advice,)


def test_unknown_result_does_not_end_a_problem():
    """After a resume, the facts become known step by step."""
    known = [Advice(name=name, severity=Severity.HINT, cause="c", evidence="e", command="t") for name in CHECKS]
    coach = Coach(known)
    over = [advice.name for _ in range(5 * PATIENCE) for advice in coach.check(facts()).over]
    assert over == ["labels_waiting", "return_not_rising"]
    results = [coach.check(case).over for case in (GOOD, facts(), GOOD, facts(), facts(), GOOD)]
    assert [len(over) for over in results] == [0, 0, 0, 0, 0, 2]  # starving, and racing
    assert len(coach.current) == len(CHECKS) - 4


def test_current_problems_are_sorted_by_severity():
    coach = Coach()
    both = facts(episodes(10, saturated=1.0), updates=0, owed=500)
    for _ in range(PATIENCE):
        coach.check(both)
    assert [advice.name for advice in coach.current] == ["updates_starving", "saturated"]


# ---- what advice proposes


def known_settings():
    """All keys of a recipe and of every plugin."""
    known = set(settings_of(load(["peg-insertion"]).model_dump(mode="json")))
    sections = {kind: section for section, kind in SECTION_KINDS.items()}
    for plugin in list_plugins():
        if plugin.error is None and plugin.kind in sections:  # advice never touches cameras and leaders
            model = config_model(resolve(plugin.kind, plugin.name))
            known |= {f"{sections[plugin.kind]}.{field}" for field in model.model_fields}
    return known


class AnySetting(dict):
    """A config that has every setting, with a number that no change proposes."""

    def __contains__(self, key):
        return True

    def __missing__(self, key):
        return 7.3

    def get(self, key, default=None):
        return super().get(key, 7.3)


def test_every_setting_in_a_change_exists():
    named = set()
    for name, bad, _ in CASES:
        settings = AnySetting(bad.settings)
        offers = Offers(
            expert=True, inputs=("a", "b"), observations=("a", "b", "c"), control_hz=bad.offers.control_hz
        )
        offers = bad.offers if bad.offers.inputs or not bad.offers.success else offers
        finding = CHECKS[name](Facts(**{**fields_of(bad), "settings": settings, "offers": offers}))
        if isinstance(finding, Finding):
            named |= {key for change in finding.changes if change for key in change.settings}
    assert len(named) > 25
    assert named <= known_settings() | {"labels", "operator"}


def fields_of(known):
    return {name: getattr(known, name) for name in Facts.__dataclass_fields__}


def command_of(name, bad):
    return Advice.of(name, CHECKS[name](bad), bad).command


FAILING = episodes(10, rewarded=False)


@pytest.mark.parametrize(
    ("settings", "offers", "command"),
    [
        ({"run.demos": 0}, Offers(expert=True), "run.demos=20"),
        ({"run.demos": 0, "task.time_limit_s": 8.0}, Offers(), "task.time_limit_s=16.0"),  # nobody can demonstrate
        ({"run.demos": 0}, Offers(person=True, console=True), "run.demos=20 --console"),
        (
            {"task.reward": "sparse", "labels": [{"type": "outcome", "dense": False}], **RANGE},
            Offers(),
            "task.reward=dense 'labels=[{type: outcome, dense: true}]' algorithm.target_range=null",
        ),
        ({"task.reward": "sparse", "algorithm.type": "ppo"}, Offers(), "task.reward=dense"),  # it reads no labels
    ],
)
def test_run_without_reward_is_told_what_it_can_do(settings, offers, command):
    bad = facts(FAILING, settings=settings, offers=offers)
    assert command_of("no_reward", bad) == f"dovetail run RUN/config.yaml {command}"


def test_run_without_any_remedy_is_told_to_look_at_an_episode():
    assert command_of("no_reward", facts(FAILING)) == "dovetail episodes show RUN last"


def test_change_that_the_config_refuses_is_not_proposed():
    bad = facts(FAILING, settings={"run.demos": 0, "task.time_limit_s": 8.0}, offers=Offers(expert=True))
    advice = Advice.of(
        "no_reward", CHECKS["no_reward"](bad), bad, is_valid=lambda overrides: overrides != ["run.demos=20"]
    )
    assert advice.settings == {"task.time_limit_s": 16.0}


def test_change_has_another_value_than_now():
    settings = {"task.reward": "dense", "labels": [{"type": "outcome", "dense": True}], "run.env_steps": 500}
    bad = facts(episodes(40), num_episodes=40, settings=settings)
    assert command_of("never_succeeds", bad) == "dovetail run RUN/config.yaml run.env_steps=1000"


def test_values_are_written_as_the_command_line_reads_them(tmp_path):
    new = {
        "labels": [{"type": "outcome", "dense": True}],
        "algorithm.target_range": None,
        "algorithm.lr": 0.00003,
        "policy.inputs": ["ee_error", "task_state"],
    }
    config = load(["push-cube"], shlex.split(shlex.join(overrides_of(new)))).model_dump(mode="json")
    assert config["labels"][0]["dense"] is True
    assert (config["algorithm"]["target_range"], config["algorithm"]["lr"]) == (None, 0.00003)
    assert config["policy"]["inputs"] == new["policy.inputs"]


def test_target_range_of_an_overestimating_critic_covers_all_returns():
    def proposed(low, high):
        bad = critic(9000.0, best_value=0.5, highest_value=high, settings={"algorithm.target_range": None})
        bad = Facts(**{**fields_of(bad), "lowest_value": low})
        return Advice.of("q_above_returns", CHECKS["q_above_returns"](bad), bad).settings["algorithm.target_range"]

    assert proposed(0.0, 1.0) == [0.0, 1.0]
    assert proposed(-0.123, 1.234) == [-0.13, 1.3]
    low, high = proposed(-1234.0, 56.7)
    assert low <= -1234.0 < -1200 and 56.7 <= high < 60.0


@pytest.mark.parametrize(
    ("labels", "more", "highest"),
    [
        ([{"type": "outcome"}], {}, 1.0),
        ([{"type": "outcome", "success_reward": 5.0}], {}, 5.0),
        ([{"type": "outcome", "stages": [{"at_least": 0.5, "reward": 0.5}]}], {}, 1.5),
        ([{"type": "outcome", "dense": True}], {"task.reward": "dense"}, 2.0),  # 1 and the progress
    ],
)
def test_target_range_includes_a_success_that_the_run_has_not_had(labels, more, highest):
    settings = {"algorithm.target_range": None, "labels": labels, **more}
    bad = critic(9000.0, best_value=0.05, highest_value=0.13, settings=settings)
    bad = Facts(**{**fields_of(bad), "lowest_value": -0.75})
    advice = Advice.of("q_above_returns", CHECKS["q_above_returns"](bad), bad)
    assert advice.settings["algorithm.target_range"] == [-0.75, highest]


def test_target_range_is_not_proposed_if_the_reward_of_a_success_is_not_known():
    settings = {"algorithm.target_range": None, "labels": [{"type": "outcome", "dense": True}], "learner.utd": 2.0}
    bad = critic(9000.0, best_value=0.05, highest_value=0.13, settings=settings)
    unseen = Advice.of("q_above_returns", CHECKS["q_above_returns"](bad), bad)
    assert unseen.settings == {"learner.utd": 1.0}
    bad = Facts(**{**fields_of(bad), "num_successes": 1})
    seen = Advice.of("q_above_returns", CHECKS["q_above_returns"](bad), bad)
    assert seen.settings == {"algorithm.target_range": [0.0, 0.13]}


def test_new_run_gets_the_name_that_the_facts_give():
    offers = Offers(person=True, console=True)
    bad = facts(FAILING, settings={"run.demos": 0}, offers=offers, run="runs/first", next_name="first-2")
    expected = "dovetail run runs/first/config.yaml run.demos=20 --name first-2 --console"
    assert command_of("no_reward", bad) == expected


@pytest.mark.parametrize(("num", "text"), [(0, "are 0 demonstrations"), (1, "is 1 demonstration"), (2, "are 2")])
def test_one_demonstration_is_written_in_the_singular(num, text):
    bad = facts(FAILING, demos=DemoFacts(num=num))
    assert f"and there {text}" in CHECKS["no_reward"](bad).evidence


def test_advice_of_0_6_can_be_read():
    old = {
        "name": "no_reward",
        "severity": "warning",
        "message": "none earned a reward",
        "try": "more demonstrations",
    }
    advice = Advice.from_json(old)
    assert (advice.message, advice.command, advice.settings) == (old["message"], old["try"], {})
    assert Advice.from_json(advice.to_json()) == advice


def test_run_without_success_ends_with_advice():
    coach, short = Coach(), facts(episodes(2), settings={"run.env_steps": 100})
    coach.check(short)
    assert coach.current == ()
    (advice,) = coach.conclude(short).begun
    assert advice.name == "never_succeeds"
    assert advice.command == "dovetail run RUN/config.yaml run.env_steps=1000"
    assert coach.conclude(short).begun == ()  # once


def test_return_decides_in_a_task_without_success():
    """A high entropy loss or saturation is no problem while the return rises."""
    known = episodes(20, total=9.0, saturated=1.0)
    early = tuple(float(i % 3) for i in range(20))
    rising = facts(known, early_totals=early, num_episodes=60, offers=Offers(success=False))
    falling = Facts(**{**fields_of(rising), "early_totals": tuple(20.0 + one for one in early)})
    assert CHECKS["saturated"](rising) is None
    assert "the mean return of the last 20 episodes is 9" in CHECKS["saturated"](falling).evidence


# ---- returns


def test_returns_to_go_match_hand_computed_values():
    sparse = np.array([0.0, 0.0, 1.0])
    np.testing.assert_allclose(returns_to_go(sparse, np.array([1.0, 1.0, 0.0]), GAMMA), [0.81, 0.9, 1.0])
    nothing = np.zeros(3)
    np.testing.assert_allclose(returns_to_go(nothing, np.ones(3), GAMMA), nothing)
    steady = returns_to_go(
        np.full(2, -0.5), np.ones(2), GAMMA
    )  # after a timeout the reward continues: -0.5 / (1 - 0.9)
    np.testing.assert_allclose(steady, [-5.0, -5.0])


@pytest.mark.parametrize(("real_time", "step", "boxes"), [(False, 0.1, 1), (True, 0.015, 0)])
def test_limits_of_a_real_arm_grow_by_half_at_most(real_time, step, boxes):
    """In simulation a limit grows to what the policy asked for; next to a real arm a person must look in between."""
    settings = {"safety.max_step": 0.01, "safety.workspace.low": [0.0] * 3, "safety.workspace.high": [1.0] * 3}
    clipped = {"clip_ratio": 10.0, "clipped": {"step": 0.9}}
    offers = Offers(real_time=real_time)
    found = CHECKS["limits_too_small"](facts(episodes(10, **clipped), settings=settings, offers=offers))
    assert found.changes[0].settings["safety.max_step"] == pytest.approx(step)
    outside = facts(episodes(10, clipped={"workspace": 0.9}), settings=settings, offers=offers)
    changes = CHECKS["limits_too_small"](outside).changes
    assert sum(one is not None and "safety.workspace.low" in one.settings for one in changes) == boxes
