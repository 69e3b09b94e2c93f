"""The figures of episodes, compared with numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from dovetail.core.figures import EpisodeScore, Mean, Performance, Quartiles, add_metrics, short
from dovetail.core.types import Outcome
from support.small_episodes import make_episode


def score(success, duration_s, *, reset_s=10.0, interventions=0, total_reward=0.0, **metrics):
    return EpisodeScore(
        success=success,
        duration_s=duration_s,
        reset_s=reset_s,
        interventions=interventions,
        total_reward=total_reward,
        metrics=metrics,
    )


FOUR = (
    score(True, 4.0, total_reward=1.0, depth_mm=10.0),
    score(True, 8.0, interventions=2, total_reward=3.0, depth_mm=20.0),
    score(False, 30.0, interventions=1, total_reward=-2.0, depth_mm=0.0),
    score(True, 18.0, total_reward=2.0, depth_mm=30.0),
)


def test_figures_of_four_episodes_equal_those_worked_out_by_hand():
    made = Performance.of(FOUR)
    assert made.num_episodes == 4
    assert (made.success.successes, made.success.episodes) == (3, 4)
    # times to success 4, 8, 18 s: quartiles at 4 + 0.5 * 4 and 8 + 0.5 * 10
    assert made.cycle_time_s == Quartiles(median=8.0, low=6.0, high=13.0, count=3)
    assert made.per_minute == pytest.approx(3.0)  # 60 s of robot time
    assert made.per_minute_with_resets == pytest.approx(1.8)  # 100 s
    assert made.interventions_per_minute == pytest.approx(3.0)
    # mean 1, sum of squares 14, so the variance is 14 / 3; t for 3 degrees of freedom is 3.1824
    assert made.returns.mean == pytest.approx(1.0)
    assert made.returns.std == pytest.approx(np.sqrt(14 / 3))
    assert made.returns.low == pytest.approx(1.0 - 3.1824 * np.sqrt(14 / 3) / 2, rel=2e-3)
    assert made.metrics == {"depth_mm": 15.0}
    assert made.value == 0.75


def test_several_prompts_have_figures_of_their_own():
    prompts = ("push the red cube", "push the blue cube", "push the red cube", "push the red cube")
    made = Performance.of([dataclasses.replace(one, prompt=text) for one, text in zip(FOUR, prompts, strict=True)])
    assert list(made.by_prompt) == ["push the blue cube", "push the red cube"]
    blue, red = made.by_prompt.values()
    assert (blue.success.successes, blue.success.episodes) == (1, 1)
    assert (red.success.successes, red.success.episodes) == (2, 3)
    assert red.metrics == {"depth_mm": pytest.approx(40 / 3)}
    assert Performance.from_json(json.loads(json.dumps(made.to_json()))).by_prompt == made.by_prompt
    assert Performance.of(FOUR).by_prompt == {}
    assert "by_prompt" not in Performance.of(FOUR).to_json()


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.706), (3, 4.3027), (4, 3.1824), (5, 2.7764), (11, 2.2281), (31, 2.0423)]
)
def test_interval_of_a_mean_uses_the_quantiles_of_students_t(count, quantile):
    # a sample with standard deviation 1
    mean = Mean(mean=0.0, std=1.0, count=count)
    assert mean.high == pytest.approx(quantile / np.sqrt(count), rel=2e-3)
    assert mean.low == -mean.high


def test_without_success_the_return_is_the_main_figure():
    made = Performance.of([score(None, 10.0, total_reward=r) for r in (-300.0, -200.0)])
    assert made.success is None and made.cycle_time_s is None
    assert made.per_minute is None and made.per_minute_with_resets is None
    assert made.main == Mean(mean=-250.0, std=pytest.approx(70.7107), count=2)
    assert made.value == -250.0


def test_no_success_in_an_environment_that_has_it_is_zero_and_not_unknown():
    made = Performance.of([score(False, 30.0)])
    assert made.success.rate == 0.0 and made.per_minute == 0.0
    assert made.cycle_time_s is None


def test_throughput_with_resets_is_unknown_if_one_reset_is():
    made = Performance.of([*FOUR, score(True, 4.0, reset_s=None)])
    assert made.per_minute is not None
    assert made.per_minute_with_resets is None


def test_figures_survive_json():
    for made in (Performance.of(FOUR), Performance.of([score(None, 1.0, total_reward=-1.0)])):
        assert Performance.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_evaluation_stored_by_0_6_loads_with_its_success_rate_alone():
    stored = {
        "successes": 9,
        "rate": 0.9,
        "low": 0.6,
        "high": 0.98,
        "episodes": 10,
        "shown": ["a"],
        "env_steps": 4,
    }
    made = Performance.from_json(stored)
    assert (made.success.successes, made.success.episodes) == (9, 10)
    assert made.cycle_time_s is None and made.returns is None and made.per_minute is None
    del stored["successes"]  # as in the events
    assert Performance.from_json(stored).success.successes == 9


def test_score_of_an_episode_has_its_robot_time_reward_and_last_metrics():
    episode = make_episode(outcome=Outcome.SUCCESS, reset_s=2.5)
    made = EpisodeScore.of(episode)
    assert made.success is True
    assert made.duration_s == len(episode) / episode.robot.control_hz
    assert made.reset_s == 2.5
    assert made.interventions == episode.num_interventions
    names = [name for name in episode.segments[0].columns if name.startswith("reward/")]
    assert made.total_reward == pytest.approx(sum(episode.column(name).sum() for name in names))
    assert made.metrics == {"distance": episode.column("metric/distance")[-1]}
    assert EpisodeScore.of(make_episode(outcome=Outcome.TIMEOUT, has_success=False)).success is None


def test_metrics_of_an_episode_are_the_last_value_or_the_sum_of_a_part_of_the_reward():
    per_step = [
        {"distance": 3.0, "reward/reach": 0.5},
        {"distance": 2.0, "reward/reach": 0.25},
        {"distance": math.nan, "reward/reach": math.nan},  # not measured in this step
    ]
    found = {}
    for metrics in per_step:
        add_metrics(found, metrics)
    assert found == {"distance": 2.0, "reward/reach": 0.75}
    episode = make_episode(num_steps=3)
    (segment,) = episode.segments
    columns = {f"metric/{name}": np.array([m[name] for m in per_step], np.float32) for name in per_step[0]}
    changed = dataclasses.replace(segment, columns={**segment.columns, **columns})
    assert EpisodeScore.of(dataclasses.replace(episode, segments=(changed,))).metrics == found


def test_episode_without_success_among_others_counts_as_not_solved():
    """An environment may report success only when it happens."""
    made = Performance.of([score(True, 6.0), score(None, 6.0)])
    assert (made.success.successes, made.success.episodes) == (1, 2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1180.4, "-1180"),
        (-262.06, "-262"),
        (3.14159, "3.14"),
        (0.05, "0.0500"),
        (0.0, "0"),
        (1.5e9, "1.5e+09"),
        (-8.69e-11, "0.00"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


def test_cycle_time_of_one_success_has_no_spread():
    assert "cycle time 1.4 s (one success)" in Performance.of([score(True, 1.4), score(False, 6.0)]).details
    assert "cycle time 2.0 s (1.5 to 2.5)" in Performance.of([score(True, 1.0), score(True, 3.0)]).details
