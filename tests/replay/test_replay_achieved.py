"""Achieved actions in the replay, and views by length of runs, episode length and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode, Purpose, View, Window
from dovetail.replay.mapped import MappedReplay
from support.replay_model import EachOnce
from support.traceable_episodes import ROBOT, label, make_traceable_episode

Open = Callable[..., MappedReplay]

# `joint_pos` is the tick, so the achieved action of tick t is t + 1; the replay does not store `joint_pos`
CHECKABLE_WINDOW: RobotSpec = dataclasses.replace(
    ROBOT,
    observation={**ROBOT.observation, "joint_pos": ArraySpec(shape=(1,))},
    action=ArraySpec(shape=(1,)),
    action_kind="joint_target",
)


def measured(episode: Episode) -> Episode:
    """A traceable episode with joint positions."""
    segments = []
    for segment in episode.segments:
        joints = (segment.first + np.arange(len(segment)))[:, None].astype(np.float32)
        last = segment.last_observation
        if last is not None:
            values = {**last.values, "joint_pos": np.array([len(episode)], np.float32)}
            last = dataclasses.replace(last, values=values)
        columns = {**segment.columns, "observation/joint_pos": joints}
        segments.append(dataclasses.replace(segment, columns=columns, last_observation=last))
    return dataclasses.replace(episode, segments=tuple(segments))


def measured_episode(number: int, num_steps: int, **other: Any) -> Episode:
    return measured(make_traceable_episode(number, num_steps, robot=CHECKABLE_WINDOW, **other))


def all_of(replay: MappedReplay, view: View, window: Window) -> dict[str, Array]:
    """Each step of a view once, in order."""
    size = replay.size(view)
    ahead = (window.horizon,) if window.horizon > 1 else ()
    into = {
        "observation/state": np.zeros((size, 2), np.float32),
        "achieved": np.zeros((size, *ahead, 1), np.float32),
    }
    if ahead:
        into["action/mask"] = np.zeros((size, *ahead), bool)
    replay.sample(into, view=view, rng=EachOnce(), window=window)  # type: ignore[arg-type]
    return into


def test_achieved_actions_do_not_cross_episode_borders(open_replay: Open) -> None:
    replay = open_replay(keys=("state",))
    for number, num_steps in ((1, 3), (2, 2)):
        episode = measured_episode(number, num_steps)
        replay.add(episode, label(episode))
    into = all_of(replay, View(), Window())
    assert into["achieved"][:, 0].tolist() == [1, 2, 3, 1, 2]
    into = all_of(replay, View(), Window(horizon=3))
    assert np.where(into["action/mask"], into["achieved"][..., 0], -1).tolist() == [
        [1, 2, 3],
        [2, 3, -1],
        [3, -1, -1],
        [1, 2, -1],
        [2, -1, -1],
    ]


@pytest.mark.parametrize("ended_first", [False, True])
def test_achieved_actions_of_running_episode_are_nan(open_replay: Open, ended_first: bool) -> None:
    replay = open_replay(keys=("state",))
    episode = measured_episode(1, 5, cuts=(2, 4))
    for segment in episode.segments if ended_first else episode.segments[:2]:
        replay.extend(episode.start, segment)
    assert np.isnan(all_of(replay, View(), Window())["achieved"]).all()
    assert replay.size(View(return_above=-10.0)) == 0
    replay.add(episode, label(episode))
    assert all_of(replay, View(), Window())["achieved"][:, 0].tolist() == [1, 2, 3, 4, 5]
    assert replay.size(View(return_above=0.5)) == 5


def test_moved_demonstration_keeps_achieved_actions(open_replay: Open) -> None:
    replay = open_replay(keys=("state",), capacity_rows=12)
    demo = measured_episode(0, 3, purpose=Purpose.DEMO)
    replay.add(demo, label(demo))
    for number in range(1, 6):
        episode = measured_episode(number, 4)
        replay.add(episode, label(episode))
    assert all_of(replay, View(part="demo"), Window())["achieved"][:, 0].tolist() == [1, 2, 3]


def test_relabel_keeps_achieved_actions_and_updates_accepted_view(open_replay: Open) -> None:
    replay = open_replay(keys=("state",))
    episode = measured_episode(1, 3)
    replay.add(episode, label(episode))  # returns 1
    assert replay.size(View(return_above=1.0)) == 0  # more than that, not as much
    replay.relabel(label(episode, reward=0.25))  # 1.75
    assert replay.size(View(return_above=1.5)) == 3
    assert all_of(replay, View(), Window())["achieved"][:, 0].tolist() == [1, 2, 3]


def test_robot_without_achieved_actions_has_no_column(open_replay: Open) -> None:
    replay = open_replay(keys=("state",))
    episode = make_traceable_episode(1, 3)
    replay.add(episode, label(episode))
    with pytest.raises(UsageError, match="does not store 'achieved'"):
        all_of(replay, View(), Window())


def test_episode_without_achieved_actions_is_nan(open_replay: Open) -> None:
    """Observations that the replay does not store may differ between robots."""
    replay = open_replay(keys=("state",))
    first = measured_episode(1, 2)
    blind = dataclasses.replace(CHECKABLE_WINDOW, name="blind", observation=ROBOT.observation)
    second = make_traceable_episode(2, 2, robot=blind)
    for episode in (first, second):
        replay.add(episode, label(episode))
    achieved = all_of(replay, View(), Window())["achieved"][:, 0]
    np.testing.assert_array_equal(achieved, [1, 2, np.nan, np.nan])


# ---- views


def ticks(replay: MappedReplay, view: View) -> list[tuple[int, int]]:
    size = replay.size(view)
    into = {"observation/state": np.zeros((size, 2), np.float32)}
    if size:
        replay.sample(into, view=view, rng=EachOnce())  # type: ignore[arg-type]
    return [(int(number), int(tick)) for number, tick in into["observation/state"]]


def test_min_run_selects_steps_followed_by_same_source(open_replay: Open) -> None:
    """Corrections of 3, 2 and 1 steps, the last two at the ends of their episodes."""
    replay = open_replay(keys=("state",))
    first, second = make_traceable_episode(1, 8, human=(1, 2, 3, 6, 7)), make_traceable_episode(2, 3, human=(2,))
    for episode in (first, second):
        replay.add(episode, label(episode))
    assert ticks(replay, View(part="human")) == [(1, 1), (1, 2), (1, 3), (1, 6), (1, 7), (2, 2)]
    assert ticks(replay, View(part="human", min_source_run=2)) == [(1, 1), (1, 2), (1, 6)]
    assert ticks(replay, View(part="human", min_source_run=3)) == [(1, 1)]
    assert ticks(replay, View(part="human", min_source_run=4)) == []
    assert ticks(replay, View(part="policy", min_source_run=2)) == [(1, 4), (2, 0)]
    with pytest.raises(UsageError, match="view 'human' is empty"):
        replay.sample(
            {"reward": np.zeros(1, np.float32)}, view=View(part="human", min_source_run=4), rng=EachOnce()
        )  # type: ignore[arg-type]


def test_min_run_spans_versions_and_segments_but_not_episodes(open_replay: Open) -> None:
    """The result does not depend on segments or on other episodes between them."""
    replay = open_replay(keys=("state",))
    split = make_traceable_episode(1, 6, human=range(6), versions=(0, 0, 1, 1, 2, 2), cuts=(3,))
    other = make_traceable_episode(2, 2, human=(0, 1))
    replay.extend(split.start, split.segments[0])
    assert ticks(replay, View(part="human", min_source_run=2)) == [(1, 0)]  # of three steps, two can be drawn
    replay.add(other, label(other))
    replay.add(split, label(split))
    assert set(ticks(replay, View(part="human", min_source_run=4))) == {(1, 0), (1, 1), (1, 2)}
    assert ticks(replay, View(part="human", min_source_run=6)) == [(1, 0)]


def test_chunks_of_min_run_are_complete(open_replay: Open) -> None:
    replay = open_replay(keys=("state",))
    for number in range(4):
        episode = make_traceable_episode(number, 20, human=(*range(2, 7), *range(12, 15)))
        replay.add(episode, label(episode))
    into = {"human": np.zeros((500, 4), bool), "action/mask": np.zeros((500, 4), bool)}
    view = View(part="human", min_source_run=4, half_life_steps=30.0)
    for chosen in (view, dataclasses.replace(view, half_life_steps=None)):
        replay.sample(into, view=chosen, rng=np.random.default_rng(0), window=Window(horizon=4))
        assert into["human"].all() and into["action/mask"].all()


def test_views_exclude_short_and_low_return_episodes(open_replay: Open) -> None:
    replay = open_replay(keys=("state",))
    for number, num_steps, reward in ((1, 2, 0.0), (2, 3, 0.0), (3, 3, -0.5)):
        episode = make_traceable_episode(number, num_steps)
        replay.add(episode, label(episode, reward=reward))  # returns 1, 1 and -0.5
    assert {number for number, _ in ticks(replay, View(min_episode_steps=3))} == {2, 3}
    assert {number for number, _ in ticks(replay, View(return_above=0.0))} == {1, 2}
    assert {number for number, _ in ticks(replay, View(return_above=0.0, min_episode_steps=3))} == {2}


@pytest.mark.parametrize("name", ["min_source_run", "min_episode_steps"])
def test_views_reject_counts_below_one(open_replay: Open, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} of a replay view is 0"):
        open_replay().size(View(**{name: 0}))
