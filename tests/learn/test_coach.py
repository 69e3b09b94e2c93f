"""Each check at its threshold; when problems are reported; and that the settings in tips exist."""

import math
import re

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.plugins import config_model, list_plugins, resolve
from dovetail.config.schema import SECTION_KINDS
from dovetail.learn import _coach_checks
from dovetail.learn._coach_checks import CHECKS
from dovetail.learn._coach_facts import UNKNOWN, EpisodeFacts, Facts, Finding, Tip
from dovetail.learn.coach import PATIENCE, REMIND, Advice, Coach, Severity, returns_to_go
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
    ("one_source", source("policy", 1.0, settings=PRIOR), source("policy", 1.0)),  # without prior data on purpose
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
    assert finding.message == (
        "the labels of 3 of the last 10 episodes contradict their outcome: 1 successes labeled as failures, 2 failures "
        "labeled as successes"
    )
    racing = CHECKS["updates_racing"](facts(updates=1000, owed=-600))
    assert racing.message.startswith("1000 updates are done, but 1000 online steps have earned only 400:")


def test_advice_for_unpublished_weights_names_pin_and_publish_every():
    for bad, tried in (
        (unpublished(1000), "publish weights more often (learner.publish_every, now 1000000)"),
        (
            unpublished(1000, pinned=0),
            "unpin version 0: remove weights/pin.json from the run; "
            "publish weights more often (learner.publish_every, now 1000000)",
        ),
    ):
        finding = CHECKS["stale_weights"](bad)
        assert "1000 updates old" in finding.message
        assert Advice.of("stale_weights", finding, bad.settings).try_ == tried


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
    advice = Advice(name="updates_starving", severity=Severity.WARNING, message="m", try_="t")
    gone = Advice(name="of an older version", severity=Severity.HINT, message="m", try_="t")
    coach = Coach([Advice.from_json(advice.to_json()), gone])
    assert coach.current == (advice,)
    assert not any(coach.check(BAD).begun for _ in range(PATIENCE))
    assert [coach.check(GOOD).over for _ in range(PATIENCE)][-1] == (advice,)


def test_unknown_result_does_not_end_a_problem():
    """After a resume, the facts become known step by step."""
    known = [Advice(name=name, severity=Severity.HINT, message="m", try_="t") for name in CHECKS]
    coach = Coach(known)
    over = [advice.name for _ in range(5 * PATIENCE) for advice in coach.check(facts()).over]
    assert over == ["labels_waiting"]
    results = [coach.check(case).over for case in (GOOD, facts(), GOOD, facts(), facts(), GOOD)]
    assert [len(over) for over in results] == [0, 0, 0, 0, 0, 2]  # starving, and racing
    assert len(coach.current) == len(CHECKS) - 3


def test_current_problems_are_sorted_by_severity():
    coach = Coach()
    both = facts(episodes(10, saturated=1.0), updates=0, owed=500)
    for _ in range(PATIENCE):
        coach.check(both)
    assert [advice.name for advice in coach.current] == ["updates_starving", "saturated"]


# ---- settings in tips


def known_settings():
    """All keys of a recipe and of every plugin."""
    known = set(settings_of(load(["peg-insertion"]).model_dump(mode="json")))
    sections = {kind: section for section, kind in SECTION_KINDS.items()}
    for plugin in list_plugins():
        if plugin.error is None:
            model = config_model(resolve(plugin.kind, plugin.name))
            known |= {f"{sections[plugin.kind]}.{field}" for field in model.model_fields}
    return known


def all_tips():
    cases = [bad for _, bad, _ in CASES] + [facts(episodes(5, outside={"a": 1.0}), settings={"run.demos": 0})]
    cases += [critic(9.0, best_value=0.5, settings={"algorithm.backup_entropy": True})]
    results = [check(bad) for bad in cases for check in CHECKS.values()]
    tips = [tip for result in results if isinstance(result, Finding) for tip in result.tips]
    return {*tips, *(value for value in vars(_coach_checks).values() if isinstance(value, Tip))}


def test_every_setting_in_a_tip_exists():
    named = {tip.key for tip in all_tips() if tip.key}
    assert len(named) > 15
    assert named <= known_settings()
    assert not [tip.text for tip in all_tips() if re.search(r"\b(run|learner|algorithm|operator)\.\w", tip.text)]


def test_advice_names_only_settings_of_this_run():
    bad = facts(episodes(10, rewarded=False), settings={"run.demos": 3, "task.reward": None})
    finding = CHECKS["no_reward"](bad)
    assert Advice.of("no_reward", finding, bad.settings).try_ == (
        "record more demonstrations (run.demos, now 3); reward progress, not only success (task.reward, now null); "
        "watch one: dovetail episodes show RUN last"
    )


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
