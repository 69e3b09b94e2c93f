"""The replay in one process: adding, sampling and refusing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.contracts import ReplayReader, ReplayWriter
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array, Outcome, Purpose, Segment, View, Window
from dovetail.replay.mapped import MappedReplay
from support.traceable_episodes import ROBOT, batch, images, label, make_traceable_episode, pictures, steps

Open = Callable[..., MappedReplay]


def draw(
    replay: MappedReplay, view: str | View = "all", size: int = 2000, seed: int = 0, **window: Any
) -> dict[str, Array]:
    into = batch(size)
    view = view if isinstance(view, View) else View(part=view)
    replay.sample(into, view=view, rng=np.random.default_rng(seed), window=Window(**window))
    return into


def test_implements_replay_contract(tmp_path: Path) -> None:
    replay = MappedReplay(folder=tmp_path / "replay")
    assert isinstance(replay, ReplayWriter)
    assert isinstance(replay, ReplayReader)
    assert not (tmp_path / "replay").exists()  # a constructor does no I/O
    assert replay.size(View()) == 0  # nor does a reader make anything
    assert not (tmp_path / "replay").exists()


def test_next_observation_stays_in_episode_and_terminal_steps_are_sampled(open_replay: Open) -> None:
    replay = open_replay()
    lengths = {1: 1, 2: 5, 3: 2}  # an episode of one step is not dropped
    for number, num_steps in lengths.items():
        episode = make_traceable_episode(number, num_steps)
        replay.add(episode, label(episode, terminal=number != 3))  # the third timed out
    sampled = draw(replay)
    state, following = sampled["observation/state"], sampled["next/state"]
    np.testing.assert_array_equal(following - state, np.tile([0.0, 1.0], (2000, 1)))
    assert steps(sampled) == {(n, t) for n, num_steps in lengths.items() for t in range(num_steps)}
    last = state[:, 1] == np.vectorize(lengths.get)(state[:, 0]) - 1
    np.testing.assert_array_equal(sampled["reward"], last.astype(np.float32))
    np.testing.assert_array_equal(sampled["discount"] == 0.0, last & (state[:, 0] != 3))  # timeouts bootstrap
    # executed, not proposed
    np.testing.assert_array_equal(sampled["action"][:, 0], 1000 * state[:, 0] + state[:, 1])


def test_return_stops_before_takeover(open_replay: Open) -> None:
    """An operator takes steps 3 and 4 of six. Three-step returns with a reward of 1 per step."""
    replay = open_replay()
    episode = make_traceable_episode(1, 6, human=[3, 4])
    replay.add(episode, label(episode, reward=1.0, terminal=False))
    for stop_at_takeover, ends in ((False, [3, 4, 5, 6, 6, 6]), (True, [3, 3, 3, 6, 6, 6])):
        sampled = draw(replay, num_steps=3, gamma=0.5, stop_at_takeover=stop_at_takeover)
        tick, after = (sampled[f"{side}/state"][:, 1].astype(int) for side in ("observation", "next"))
        span = after - tick
        np.testing.assert_array_equal(after, np.array(ends)[tick])
        np.testing.assert_array_equal(sampled["discount"], 0.5**span)
        last = np.where(after == 6, 0.5 ** (span - 1), 0.0)  # which is worth 1 more
        np.testing.assert_array_equal(sampled["reward"], 2.0 - 0.5 ** (span - 1) + last)


def test_views_select_expected_steps(open_replay: Open) -> None:
    replay = open_replay()
    x5 = dataclasses.replace(ROBOT, name="x5")
    demo = make_traceable_episode(1, 3, human=(0, 1, 2), purpose=Purpose.DEMO)
    online = make_traceable_episode(2, 4, human=(1, 2), cuts=(2,), versions=(3, 3, 4, 5))
    failed = make_traceable_episode(3, 2, versions=7, robot=x5, task="open_drawer")
    for episode in (demo, online, failed):
        replay.add(episode, label(episode, terminal=episode is not failed))
    demos, corrected = {(1, t) for t in range(3)}, {(2, 1), (2, 2)}
    onlines, others = {(2, t) for t in range(4)}, {(3, 0), (3, 1)}
    expected = {
        View(part="demo"): demos,
        View(part="human"): corrected,
        View(part="policy"): {(2, 0), (2, 3)} | others,
        View(part="prior"): demos | corrected,
        View(part="online"): onlines | others,  # corrected ones too
        View(part="accepted"): demos | onlines,
        View(): demos | onlines | others,
        View(robot="x5"): others,
        View(robot="panda", part="policy"): {(2, 0), (2, 3)},
        View(robot="r2"): set(),
        View(task="open_drawer"): others,
        View(task="open_drawer", part="accepted"): set(),
        View(versions=(3, 5)): {(2, 0), (2, 3)},  # operator steps have no policy version
        View(versions=(5, 9)): {(2, 3)} | others,
        View(max_staleness=0): others,
        View(max_staleness=2): {(2, 3)} | others,
        View(max_staleness=2, versions=(0, 5)): {(2, 3)},
        View(half_life_steps=2.0, part="online"): onlines | others,
    }
    for view, members in expected.items():
        assert replay.size(view) == len(members), view
        if members:
            assert steps(draw(replay, view)) == members, view
        else:
            with pytest.raises(UsageError, match="is empty"):
                draw(replay, view)


def test_names_longer_than_their_field_are_matched(open_replay: Open) -> None:
    replay = open_replay()
    episode = make_traceable_episode(1, 2, task="t" * 200, robot=dataclasses.replace(ROBOT, name="r" * 200))
    replay.add(episode, label(episode))
    assert replay.size(View(task="t" * 200, robot="r" * 200)) == 2
    assert replay.size(View(task="t" * 20)) == 0


def test_next_of_human_step_is_next_tick(open_replay: Open) -> None:
    replay = open_replay(keys=("state", "wrist"))
    episode = make_traceable_episode(1, 6, human=(2, 4))
    replay.add(episode, label(episode))
    into = {**batch(200), **images(200)}
    replay.sample(into, view=View(part="human"), rng=np.random.default_rng(0))
    pairs = zip(into["observation/state"], into["next/state"], strict=True)
    assert {(int(a[1]), int(b[1])) for a, b in pairs} == {(2, 3), (4, 5)}
    for side in ("observation", "next"):  # the image belongs to the same tick
        np.testing.assert_array_equal(
            into[f"{side}/wrist"], pictures(1, into[f"{side}/state"][:, 1].astype(np.int64))
        )


def test_windows_match_values_computed_by_hand(open_replay: Open) -> None:
    """Two episodes of four steps with rewards 1, 2, 3, 4, so that each term of a sum is visible."""
    replay = open_replay(keys=("state", "wrist"))
    for number in (1, 2):
        episode = make_traceable_episode(number, 4, human=(1,), versions=number)
        end = np.float32(number - 1)  # the first is terminal, the second a timeout
        labels = dataclasses.replace(
            label(episode), rewards=np.arange(1.0, 5.0, dtype=np.float32), discounts=np.array([1, 1, 1, end], "f4")
        )
        replay.add(episode, labels)
    size = 400
    into = {
        **batch(size),
        "observation/state": np.zeros((size, 3, 2), np.float32),
        "observation/state/mask": np.zeros((size, 3), bool),
        "next/state": np.zeros((size, 3, 2), np.float32),
        "next/state/mask": np.zeros((size, 3), bool),
        "observation/wrist": np.zeros((size, 4, 4, 3), np.uint8),
        "action": np.zeros((size, 3, 1), np.float32),
        "action/mask": np.zeros((size, 3), bool),
        "human": np.zeros((size, 3), bool),
        "policy_version": np.zeros((size, 3), np.int64),
    }
    window = Window(gamma=0.5, num_steps=2, horizon=3, history={"state": 3})
    replay.sample(into, view=View(), rng=np.random.default_rng(0), window=window)
    now = into["observation/state"][:, -1]
    by_tick = {
        # ticks seen before, which were; actions, which exist; reward over two steps; ticks after; discount
        0: ([0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 1, 1], 1 + 0.5 * 2, [0, 1, 2], [1, 1, 1], 0.25, [0, 1, 0]),
        1: ([0, 0, 1], [0, 1, 1], [1, 2, 3], [1, 1, 1], 2 + 0.5 * 3, [1, 2, 3], [1, 1, 1], 0.25, [1, 0, 0]),
        2: ([0, 1, 2], [1, 1, 1], [2, 3, 3], [1, 1, 0], 3 + 0.5 * 4, [2, 3, 4], [1, 1, 1], 0.25, [0, 0, 0]),
        3: ([1, 2, 3], [1, 1, 1], [3, 3, 3], [1, 0, 0], 4, [2, 3, 4], [1, 1, 1], 0.5, [0, 0, 0]),
    }
    assert {(int(n), int(t)) for n, t in now} == {(n, t) for n in (1, 2) for t in range(4)}
    for row, (number, tick) in enumerate(now):
        seen, known, done, exist, reward, after, known_after, discount, human = by_tick[int(tick)]
        if number == 1 and tick >= 2:
            discount = 0.0
        assert into["observation/state"][row].tolist() == [[number, t] for t in seen]
        assert into["observation/state/mask"][row].tolist() == known
        assert into["action"][row, :, 0].tolist() == [1000 * number + t for t in done]
        assert into["action/mask"][row].tolist() == exist
        assert into["human"][row].tolist() == human
        assert into["policy_version"][row].tolist() == [number] * 3
        assert into["reward"][row] == reward
        assert into["next/state"][row].tolist() == [[number, t] for t in after]
        assert into["next/state/mask"][row].tolist() == known_after
        assert into["discount"][row] == discount
        np.testing.assert_array_equal(
            into["observation/wrist"][row], pictures(int(number), np.array([int(tick)]))[0]
        )


def test_adding_twice_changes_nothing_even_after_eviction(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=8)
    first, second = make_traceable_episode(1, 4), make_traceable_episode(2, 4)
    replay.add(first, label(first))
    replay.add(first, label(first, reward=9))
    assert replay.size(View()) == 4
    assert draw(replay)["reward"].max() == 1.0
    replay.add(second, label(second))
    replay.add(first, label(first))
    assert replay.ids() == ["e2"]
    replay.relabel(label(first))  # evicted: no effect
    assert steps(draw(replay)) == {(2, t) for t in range(4)}


def test_episodes_with_same_counter_and_other_id_are_distinct(open_replay: Open) -> None:
    replay = open_replay()
    for run in ("a", "b"):  # the same counter again, another id
        episode = make_traceable_episode(1, 3, id=f"t-{run}")
        replay.add(episode, label(episode))
    assert replay.size(View(part="online")) == 6


def test_evicts_whole_episodes_oldest_first(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=12, keep_demos=False)
    for number in range(1, 30):
        episode = make_traceable_episode(number, 4, purpose=Purpose.DEMO if number % 3 else Purpose.ONLINE)
        replay.add(episode, label(episode))
        held = range(max(1, number - 1), number + 1)
        assert replay.ids() == [f"e{n}" for n in held]
        sampled = draw(replay, size=300)
        assert steps(sampled) == {(n, t) for n in held for t in range(4)}
        assert (
            sampled["next/state"] - sampled["observation/state"] == [0, 1]
        ).all()  # also across the end of the ring


def test_demonstrations_are_never_evicted(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=20, keys=("state", "wrist"))
    demos = [make_traceable_episode(n, 3, purpose=Purpose.DEMO, frames=(0, 0, 1, 1)) for n in (1, 2)]
    for demo in demos:
        replay.add(demo, label(demo, reward=float(demo.id[1:])))
    for number in range(3, 40):
        episode = make_traceable_episode(number, 4)
        replay.add(episode, label(episode))
        assert {"e1", "e2", f"e{number}"} <= set(replay.ids())
        into = {**batch(300), **images(300)}
        replay.sample(into, view=View(part="demo"), rng=np.random.default_rng(0))
        assert steps(into) == {(n, t) for n in (1, 2) for t in range(3)}
        np.testing.assert_array_equal(
            into["reward"], into["observation/state"][:, 0] + (into["observation/state"][:, 1] == 2)
        )
        for side in ("observation", "next"):
            for picture, (n, tick) in zip(into[f"{side}/wrist"], into[f"{side}/state"], strict=True):
                np.testing.assert_array_equal(picture, pictures(int(n), np.array([int(tick) // 2]))[0])
    replay.drop("e1")
    for number in range(40, 50):
        episode = make_traceable_episode(number, 4)
        replay.add(episode, label(episode))
    replay.add(demos[0], label(demos[0]))  # a dropped episode is not added again
    assert replay.size(View(part="demo")) == 3
    long = make_traceable_episode(60, 16)  # the demonstration takes 4 of 20 rows; this one needs 17
    way_out = (
        r"start a new run with a larger replay.capacity_rows, fewer demonstrations, or replay.keep_demos=false"
    )
    with pytest.raises(
        UsageError, match=rf"e60 needs at least 17 rows.*has 20, of which demonstrations take 4.*{way_out}"
    ):
        replay.add(long, label(long))
    assert replay.size(View(part="demo")) == 3
    fits = make_traceable_episode(61, 15)
    replay.add(fits, label(fits))
    assert replay.ids() == ["e2", "e61"]


def test_episode_lengths_from_one_step_to_full_ring(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=6, keys=("state", "wrist"))
    for number in range(1, 5):
        whole = make_traceable_episode(number, 5)
        replay.add(whole, label(whole))
        assert steps(draw(replay)) == {(number, t) for t in range(5)}
    too_long = make_traceable_episode(9, 6)
    with pytest.raises(UsageError, match=r"e9 needs at least 7 rows.*has 6.* a larger replay.capacity_rows\."):
        replay.add(too_long, label(too_long))
    assert steps(draw(replay)) == {(4, t) for t in range(5)}  # nothing was evicted for it
    small = open_replay(capacity_gb=1e-6, keys=("state",))  # limited by bytes
    with pytest.raises(UsageError, match=r"a larger replay.capacity_gb\."):
        small.add(long := make_traceable_episode(9, 30), label(long))
    for number in range(10, 30):
        short = make_traceable_episode(number, 1)
        replay.add(short, label(short))
    assert replay.ids() == ["e27", "e28", "e29"]
    assert steps(draw(replay)) == {(27, 0), (28, 0), (29, 0)}


def test_relabel_changes_rewards_only(open_replay: Open) -> None:
    replay = open_replay()
    for number in (1, 2):
        episode = make_traceable_episode(number, 3)
        replay.add(episode, label(episode))
    replay.relabel(label(make_traceable_episode(1, 3), reward=5.0, terminal=False))
    sampled = draw(replay)
    first = sampled["observation/state"][:, 0] == 1
    assert sampled["reward"][first].min() == 5.0
    assert sampled["discount"][first].min() == 1.0
    assert sampled["reward"][~first].max() == 1.0
    assert steps(draw(replay, "accepted")) == {(2, t) for t in range(3)}  # no longer a success
    with pytest.raises(UsageError, match=r"e9.*never added"):
        replay.relabel(label(make_traceable_episode(9, 3)))
    with pytest.raises(UsageError, match=r"rewards of episode e1 have shape \[4\], expected \[3\]"):
        replay.relabel(dataclasses.replace(label(make_traceable_episode(1, 4)), episode_id="e1"))


def test_requested_images_are_stored_once_as_uint8(open_replay: Open, tmp_path: Path) -> None:
    replay = open_replay(keys=("wrist",), folder="camera")
    episode = make_traceable_episode(1, 5, frames=(0, 0, 1, 1, 1, 2))
    replay.add(episode, label(episode))
    into = images(64)
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    pairs = zip(into["observation/wrist"][:, 0, 0, 1], into["next/wrist"][:, 0, 0, 1], strict=True)
    assert {(int(a), int(b)) for a, b in pairs} == {(0, 0), (0, 1), (1, 1), (1, 2)}
    stored = np.frombuffer((tmp_path / "camera" / "frames-wrist.bin").read_bytes(), np.uint8).reshape(-1, 4, 4, 3)
    np.testing.assert_array_equal(stored[:3], pictures(1, np.arange(3)))
    assert not stored[3:].any()  # six ticks, three frames
    with pytest.raises(UsageError, match=r"'observation/wrist' in the replay is uint8\[4, 4, 3\].*float32"):
        replay.sample(
            {"observation/wrist": np.zeros((64, 4, 4, 3), np.float32)}, view=View(), rng=np.random.default_rng(0)
        )
    with pytest.raises(UsageError, match="does not store 'observation/state'"):
        replay.sample(batch(4), view=View(), rng=np.random.default_rng(0))
    floats = make_traceable_episode(2, 5, image_dtype="float32")
    with pytest.raises(SpecMismatch, match=r"wrist.*float32\[4, 4, 3\].*uint8\[4, 4, 3\]"):
        replay.add(floats, label(floats))
    assert replay.size(View()) == 5


def test_large_images_copied_by_threads_are_complete(open_replay: Open) -> None:
    """Batches over a megabyte are split among threads; the odd size gives unequal parts."""
    robot = dataclasses.replace(
        ROBOT, observation={"wrist": ArraySpec(shape=(64, 64, 3), dtype="uint8"), "state": ArraySpec(shape=(2,))}
    )
    small = make_traceable_episode(1, 30)
    big = {"observation/wrist": np.repeat(np.repeat(small.segments[0].columns["observation/wrist"], 16, 1), 16, 2)}
    last = small.last_observation.values["wrist"].repeat(16, 0).repeat(16, 1)
    segment = dataclasses.replace(
        small.segments[0],
        columns={**small.segments[0].columns, **big},
        last_observation=dataclasses.replace(
            small.last_observation, values={**small.last_observation.values, "wrist": last}
        ),
    )
    replay = open_replay(keys=("state", "wrist"), num_threads=3)
    replay.add(dataclasses.replace(small, robot=robot, segments=(segment,)), label(small))
    into = {**batch(257), "observation/wrist": np.zeros((257, 64, 64, 3), np.uint8)}
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    expected = pictures(1, into["observation/state"][:, 1].astype(np.int64)).repeat(16, 1).repeat(16, 2)
    np.testing.assert_array_equal(into["observation/wrist"], expected)


def test_images_are_not_stored_by_default(open_replay: Open) -> None:
    replay = open_replay()
    episode = make_traceable_episode(1, 5)
    replay.add(episode, label(episode))
    with pytest.raises(UsageError, match="does not store 'observation/wrist'"):
        replay.sample(images(1), view=View(), rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"purpose": Purpose.EVAL}, "evaluation"),
        ({"outcome": Outcome.ABORTED}, "aborted"),
        ({"judgement": Outcome.ABORTED}, "aborted"),
        ({"id": "e" * 121}, "longer than 120 bytes"),
    ],
)
def test_refuses_evaluations_and_aborted_episodes(open_replay: Open, change: dict[str, Any], message: str) -> None:
    replay = open_replay()
    episode = make_traceable_episode(1, 3, **change)
    with pytest.raises(UsageError, match=message):
        replay.add(episode, label(episode))
    assert replay.size(View()) == 0
    if "outcome" not in change and "judgement" not in change:
        with pytest.raises(UsageError, match=message):
            replay.extend(episode.start, episode.segments[0])


def test_refuses_gaps_unfinished_episodes_and_wrong_labels(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=10)
    episode = make_traceable_episode(1, 6, cuts=(2, 4))
    a, b, c = episode.segments
    with pytest.raises(UsageError, match="gap: step 4 follows step 1"):
        replay.add(dataclasses.replace(episode, segments=(a, c)), label(episode))
    with pytest.raises(UsageError, match="no last observation"):
        replay.add(dataclasses.replace(episode, segments=(a,)), label(episode))
    with pytest.raises(UsageError, match="rewards of episode e1 have shape"):
        replay.add(episode, dataclasses.replace(label(make_traceable_episode(2, 5)), episode_id="e1"))
    with pytest.raises(UsageError, match="labels of episode e2"):
        replay.add(episode, label(make_traceable_episode(2, 6)))
    with pytest.raises(UsageError, match="not all finite"):
        replay.add(episode, label(episode, reward=float("nan")))
    with pytest.raises(UsageError, match="gap: step 2 follows step -1"):
        replay.extend(episode.start, b)
    with pytest.raises(UsageError, match="must have a last observation if, and only if, it is final"):
        replay.extend(episode.start, dataclasses.replace(a, final=True))
    assert replay.size(View()) == 0
    replay.extend(episode.start, a)
    with pytest.raises(UsageError, match="has not ended"):
        replay.relabel(label(episode))


@pytest.mark.parametrize("name", ["source", "policy_version", "observation/state"])
def test_refuses_columns_of_another_length(open_replay: Open, name: str) -> None:
    """One row too many would overwrite another episode."""
    replay = open_replay(capacity_rows=10)
    first, second = make_traceable_episode(1, 4), make_traceable_episode(2, 4)
    replay.add(first, label(first))
    segment = second.segments[0]
    for column in (np.concatenate((segment.columns[name],) * 2), segment.columns[name][:-1]):
        wrong = dataclasses.replace(segment, columns={**segment.columns, name: column})
        with pytest.raises(UsageError, match=rf"'{name}' of episode e2 has {len(column)} rows for 4 steps"):
            replay.add(dataclasses.replace(second, segments=(wrong,)), label(second))
    missing = {key: column for key, column in segment.columns.items() if key != name}
    with pytest.raises(UsageError, match="e2 has"):
        replay.extend(second.start, dataclasses.replace(segment, columns=missing))
    assert steps(draw(replay)) == {(1, t) for t in range(4)}


@pytest.mark.parametrize("name", ["observation/state", "executed"])
def test_refuses_nan_and_infinity(open_replay: Open, name: str) -> None:
    replay = open_replay()
    episode = make_traceable_episode(1, 3)
    column = episode.segments[0].columns[name].copy()
    column[1] = np.nan
    wrong = dataclasses.replace(episode.segments[0], columns={**episode.segments[0].columns, name: column})
    with pytest.raises(UsageError, match="NaN or infinity"):
        replay.add(dataclasses.replace(episode, segments=(wrong,)), label(episode))
    assert replay.size(View()) == 0


def test_refuses_episode_of_other_robot(open_replay: Open) -> None:
    replay = open_replay()
    first = make_traceable_episode(1, 3)
    replay.add(first, label(first))
    spec = first.robot
    bare = {"force": ArraySpec(shape=(2,))}
    others = {
        "limits": dataclasses.replace(spec, name="x5", action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,))),
        "joint_target": dataclasses.replace(spec, name="x5", action_kind="joint_target"),
        "control_hz 10.0.*has 20.0": dataclasses.replace(spec, name="x5", control_hz=20.0),
        "embodiment": dataclasses.replace(spec, name="x5", embodiment="arm6"),
        "no observation 'state'": dataclasses.replace(spec, name="x5", observation=bare),
    }
    replay_limits = open_replay()
    bounded = make_traceable_episode(
        1, 3, robot=dataclasses.replace(spec, action=ArraySpec(shape=(1,), low=(-2.0,), high=(2.0,)))
    )
    replay_limits.add(bounded, label(bounded))
    for message, robot in others.items():
        other = make_traceable_episode(2, 3, robot=robot)
        if robot.observation is bare:
            force = {"observation/force": other.segments[0].columns["observation/state"]}
            last = dataclasses.replace(other.last_observation, values={"force": np.zeros(2, np.float32)})
            segment = dataclasses.replace(
                other.segments[0], columns={**other.segments[0].columns, **force}, last_observation=last
            )
            other = dataclasses.replace(other, segments=(segment,))
        with pytest.raises(SpecMismatch, match=message) as refused:
            (replay_limits if message == "limits" else replay).add(other, label(other))
        assert "'panda'" in str(refused.value)
        assert "'x5'" in str(refused.value)
    blind = make_traceable_episode(
        4, 3, robot=dataclasses.replace(spec, observation={"state": spec.observation["state"]})
    )
    replay.add(blind, label(blind))  # no camera, but this replay stores no images
    asked = open_replay(keys=("stat",))
    with pytest.raises(SpecMismatch, match="Did you mean 'state'"):
        asked.add(first, label(first))
    tiny = open_replay(capacity_gb=1e-7)
    with pytest.raises(UsageError, match=r"takes \d+ bytes.*Raise replay.capacity_gb"):
        tiny.add(first, label(first))


def test_sampling_errors_name_the_mistake(open_replay: Open) -> None:
    replay = open_replay()
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="'prior' is empty"):
        replay.sample(batch(2), view=View(part="prior"), rng=rng)
    with pytest.raises(UsageError, match="Did you mean 'online'"):  # even before there is anything
        replay.size(View(part="onlin"))
    episode = make_traceable_episode(1, 3)
    replay.add(episode, label(episode))
    with pytest.raises(UsageError, match="'prior' is empty"):
        replay.sample(batch(2), view=View(part="prior"), rng=rng)
    with pytest.raises(UsageError, match="the same length"):
        replay.sample({**batch(2), "reward": np.zeros(3, np.float32)}, view=View(), rng=rng)
    with pytest.raises(UsageError, match="Did you mean 'reward'"):
        replay.sample({"rewards": np.zeros(3, np.float32)}, view=View(), rng=rng)
    with pytest.raises(UsageError, match=r"'action' in the replay is float32\[3, 1\]"):
        replay.sample(batch(2), view=View(), rng=rng, window=Window(horizon=3))
    for window in (Window(num_steps=0), Window(horizon=0), Window(history={"state": 0})):
        with pytest.raises(UsageError, match="must be at least 1"):
            replay.sample(batch(2), view=View(), rng=rng, window=window)
    for half_life_steps in (0.0, -3.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="half_life_steps of a replay view is"):
            replay.size(View(half_life_steps=half_life_steps))
    replay.sample(batch(0), view=View(), rng=rng)  # an empty batch is allowed


def test_same_episodes_and_seed_give_same_batch(open_replay: Open) -> None:
    batches = []
    for _ in range(2):
        replay = open_replay()
        for number in (1, 2, 3):
            episode = make_traceable_episode(number, 4, human=(1,))
            replay.add(episode, label(episode))
        whole, rng = batch(48), np.random.default_rng(7)
        for part, view in enumerate((View(part="human"), View(part="online"), View(half_life_steps=3.0))):
            rows = {key: out[16 * part : 16 * (part + 1)] for key, out in whole.items()}
            replay.sample(rows, view=view, rng=rng)
        batches.append(whole)
    for key, value in batches[0].items():
        np.testing.assert_array_equal(value, batches[1][key])
        assert np.isfinite(value).all()
    assert set(batches[0]["observation/state"][:16, 1]) == {1.0}


# ---- episodes that are still running


def test_running_episode_is_sampled_up_to_its_newest_step(open_replay: Open) -> None:
    replay = open_replay(keys=("state", "wrist"))
    episode = make_traceable_episode(
        1, 7, cuts=(3, 4), frames=(0, 0, 0, 0, 1, 1, 1, 1)
    )  # a frame lasts beyond a cut
    a, b, c = episode.segments
    replay.extend(episode.start, a)
    assert steps(draw(replay)) == {(1, 0), (1, 1)}  # the observation after the third step is not known yet
    replay.extend(episode.start, a)  # sent twice
    replay.extend(episode.start, b)
    sampled = draw(replay, num_steps=5, gamma=0.5)
    assert steps(sampled) == {(1, t) for t in range(3)}
    assert (sampled["next/state"][:, 1] == 3).all()  # as far as there is anything
    np.testing.assert_array_equal(sampled["discount"], 0.5 ** (3 - sampled["observation/state"][:, 1]))
    assert (sampled["reward"] == 0).all()
    replay.extend(episode.start, c)
    assert steps(draw(replay)) == {(1, t) for t in range(7)}
    assert (draw(replay)["discount"] == 1).all()  # finished but not labeled
    assert replay.size(View(part="accepted")) == 0
    assert not replay.was_added("e9")
    replay.add(episode, label(episode, reward=2.0))  # nothing new but the labels
    sampled = draw(replay)
    last = sampled["observation/state"][:, 1] == 6
    np.testing.assert_array_equal(sampled["reward"], np.where(last, 3.0, 2.0))
    np.testing.assert_array_equal(sampled["discount"] == 0, last)
    assert replay.size(View(part="accepted")) == 7


def test_add_completes_and_labels_streamed_episode(open_replay: Open) -> None:
    replay = open_replay()
    for number in (1, 2):
        episode = make_traceable_episode(number, 5, cuts=(2,))
        replay.extend(episode.start, episode.segments[0])
        assert not replay.was_added(episode.id)  # a part does not count as added
    for number in (1, 2):
        episode = make_traceable_episode(number, 5)
        replay.add(episode, label(episode, reward=float(number)))
        assert replay.was_added(episode.id)
    sampled = draw(replay, num_steps=5, gamma=1.0)
    number, tick = sampled["observation/state"].T
    np.testing.assert_array_equal(sampled["reward"], number * (5 - tick) + 1)
    assert (sampled["next/state"] == np.stack([number, np.full_like(tick, 5)], axis=1)).all()
    assert replay.size(View(part="accepted")) == 10


def test_dropped_episode_is_never_sampled(open_replay: Open) -> None:
    replay = open_replay()
    episode, other = make_traceable_episode(1, 5, cuts=(3,)), make_traceable_episode(2, 2)
    replay.extend(episode.start, episode.segments[0])
    replay.add(other, label(other))
    replay.drop("e1")
    replay.drop("e1")
    replay.drop("e9")
    replay.extend(episode.start, episode.segments[1])
    replay.add(episode, label(episode))
    replay.relabel(label(episode))
    assert replay.ids() == ["e2"]
    assert steps(draw(replay)) == {(2, 0), (2, 1)}
    nine = make_traceable_episode(9, 2)  # dropped before it came
    replay.add(nine, label(nine))
    assert replay.ids() == ["e2"]


def test_episode_evicted_while_running_can_be_added_whole(open_replay: Open) -> None:
    """A slow and a fast robot share a small ring; the slow one's episode must not be lost."""
    replay = open_replay(capacity_rows=12)
    slow = make_traceable_episode(1, 5, cuts=(2,))
    replay.extend(slow.start, slow.segments[0])
    for number in (2, 3, 4):
        quick = make_traceable_episode(number, 3)
        replay.add(quick, label(quick))
    assert "e1" not in replay.ids()
    replay.extend(slow.start, slow.segments[1])  # its first steps were evicted, so this segment is ignored
    assert "e1" not in replay.ids()
    replay.add(slow, label(slow))
    assert replay.ids() == ["e4", "e1"]
    sampled = draw(replay)
    assert steps(sampled) == {(4, t) for t in range(3)} | {(1, t) for t in range(5)}
    replay.add(make_traceable_episode(5, 10), label(make_traceable_episode(5, 10)))
    replay.add(slow, label(slow))  # it was complete before it was evicted
    assert replay.ids() == ["e5"]


def test_oldest_running_episode_is_moved(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=10, keys=("state", "wrist"))
    slow = make_traceable_episode(1, 8, cuts=(3, 6), frames=(0, 0, 0, 0, 1, 1, 1, 1, 2))
    demo = make_traceable_episode(2, 1, purpose=Purpose.DEMO)
    replay.extend(slow.start, slow.segments[0])
    replay.add(demo, label(demo))
    quick = make_traceable_episode(3, 3)
    replay.add(quick, label(quick))
    replay.extend(
        slow.start, slow.segments[1]
    )  # needs three rows but one is free: the fast robot's episode is evicted
    into = {**batch(300), **images(300)}
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    assert steps(into) == {(1, t) for t in range(5)} | {(2, 0)}
    with pytest.raises(UsageError, match=r"e1 needs at least 9 rows.*demonstrations take 2"):
        replay.add(slow, label(slow))
    replay.drop("e2")
    replay.add(slow, label(slow))
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    assert steps(into) == {(1, t) for t in range(8)}
    assert (into["next/state"] - into["observation/state"] == [0, 1]).all()
    for side in ("observation", "next"):
        ticks = into[f"{side}/state"][:, 1].astype(np.int64)
        np.testing.assert_array_equal(into[f"{side}/wrist"], pictures(1, ticks // 4))


def test_empty_segment_changes_nothing(open_replay: Open) -> None:
    replay = open_replay()
    episode = make_traceable_episode(1, 4, cuts=(2,))
    a = episode.segments[0]
    empty = Segment(episode_id="e1", first=0, final=False, columns={k: v[:0] for k, v in a.columns.items()})
    replay.extend(episode.start, empty)
    assert replay.ids() == []
    replay.extend(episode.start, a)
    replay.extend(episode.start, dataclasses.replace(empty, first=2))
    assert replay.ids() == ["e1"]
    assert replay.size(View()) == 1


# ---- closing and opening again


def test_reopened_replay_continues(open_replay: Open) -> None:
    replay = open_replay(folder="one", capacity_rows=14, keys=("state", "wrist"))
    demo, running = make_traceable_episode(1, 2, purpose=Purpose.DEMO), make_traceable_episode(2, 4, cuts=(2,))
    replay.add(demo, label(demo))
    replay.extend(running.start, running.segments[0])
    dropped = make_traceable_episode(3, 1)
    replay.add(dropped, label(dropped))
    replay.drop("e3")
    before = draw(replay)
    for _ in range(3):  # a resumed run resumed again
        replay.close()
        again = open_replay(folder="one", capacity_rows=14, keys=("state", "wrist"))
        assert again.open() is None
        assert again.ids() == ["e1", "e2"]
        for name, value in draw(again).items():
            np.testing.assert_array_equal(value, before[name])
        again.close()
        replay.open()  # and the object that had closed it
    for number in (1, 3):  # both are known
        again = make_traceable_episode(number, 1)
        replay.add(again, label(again))
    replay.extend(running.start, running.segments[1])
    replay.relabel(label(running))
    assert steps(draw(replay)) == {(1, 0), (1, 1)} | {(2, t) for t in range(4)}
    long = make_traceable_episode(4, 10)  # 11 rows and 3 of the demonstration are 14, however often it was opened
    replay.add(long, label(long))
    assert replay.ids() == ["e1", "e4"]


def test_skipped_episode_counts_as_added(open_replay: Open) -> None:
    replay = open_replay(folder="one")
    episode = make_traceable_episode(1, 3)
    replay.add(episode, label(episode))
    replay.skip("old", ROBOT, num_steps=3)
    replay.close()
    replay = open_replay(folder="one")
    assert replay.was_added("e1")
    assert replay.was_added("old")
    assert not replay.was_added("new")
    old = make_traceable_episode(2, 3, id="old")
    replay.add(old, label(old))
    assert replay.ids() == ["e1"]
    assert replay.total_rows(ROBOT) == 1000
