from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from dovetail.core.contracts import ReplayReader, ReplayWriter
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose
from dovetail.replay.memory import MemoryReplay, MemoryReplayConfig

Make = Callable[..., Episode]
Label = Callable[..., Labels]


def batch(size: int) -> dict[str, Array]:
    return {
        "observation/state": np.full((size, 2), np.nan, np.float32),
        "next/state": np.full((size, 2), np.nan, np.float32),
        "action": np.full((size, 1), np.nan, np.float32),
        "reward": np.full(size, np.nan, np.float32),
        "discount": np.full(size, np.nan, np.float32),
    }


def draw(replay: MemoryReplay, view: str = "all", size: int = 2000, seed: int = 0) -> Mapping[str, Array]:
    into = batch(size)
    replay.sample(into, view=view, rng=np.random.default_rng(seed))
    return into


def steps(sampled: Mapping[str, Array]) -> set[tuple[int, int]]:
    return {(int(episode), int(tick)) for episode, tick in sampled["observation/state"]}


def test_is_both_ends_of_the_contract() -> None:
    assert isinstance(MemoryReplay(), ReplayWriter)
    assert isinstance(MemoryReplay(), ReplayReader)


def test_next_never_crosses_a_border_and_terminal_steps_are_reached(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    lengths = {1: 1, 2: 5, 3: 2}  # an episode of one step is not dropped
    for number, num_steps in lengths.items():
        episode = make_episode(number, num_steps)
        replay.add(episode, label(episode, terminal=number != 3))  # the third timed out
    sampled = draw(replay)
    state, following = sampled["observation/state"], sampled["next/state"]
    np.testing.assert_array_equal(following - state, np.tile([0.0, 1.0], (2000, 1)))
    assert steps(sampled) == {(n, t) for n, num_steps in lengths.items() for t in range(num_steps)}
    last = state[:, 1] == np.vectorize(lengths.get)(state[:, 0]) - 1
    np.testing.assert_array_equal(sampled["reward"], last.astype(np.float32))
    np.testing.assert_array_equal(sampled["discount"] == 0.0, last & (state[:, 0] != 3))  # timeouts bootstrap
    np.testing.assert_array_equal(
        sampled["action"][:, 0], 1000 * state[:, 0] + state[:, 1]
    )  # executed, not proposed


def test_views(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    demo = make_episode(1, 3, human=(0, 1, 2), purpose=Purpose.DEMO)
    online = make_episode(2, 4, human=(1, 2), cuts=(2,))
    for episode in (demo, online):
        replay.add(episode, label(episode))
    demos, corrected = {(1, t) for t in range(3)}, {(2, 1), (2, 2)}
    expected = {
        "demo": demos,
        "human": corrected,
        "prior": demos | corrected,
        "online": {(2, t) for t in range(4)},  # corrected ones too
        "all": demos | {(2, t) for t in range(4)},
    }
    for view, members in expected.items():
        assert replay.size(view) == len(members)
        assert steps(draw(replay, view)) == members


def test_the_step_after_a_correction_is_the_next_tick(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    episode = make_episode(1, 6, human=(2, 4))
    replay.add(episode, label(episode))
    sampled = draw(replay, "human")
    assert {
        (int(a[1]), int(b[1])) for a, b in zip(sampled["observation/state"], sampled["next/state"], strict=True)
    } == {
        (2, 3),
        (4, 5),
    }


def test_adding_twice_is_harmless_even_after_eviction(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay(MemoryReplayConfig(capacity_steps=6))
    first, second = make_episode(1, 4), make_episode(2, 4)
    replay.add(first, label(first))
    replay.add(first, label(first, reward=9))
    assert replay.size("all") == 4
    assert draw(replay)["reward"].max() == 1.0
    replay.add(second, label(second))
    replay.add(first, label(first))
    assert replay.ids() == ["e2"]
    replay.relabel(label(first))  # gone: nothing to do
    assert steps(draw(replay)) == {(2, t) for t in range(4)}


def test_after_a_restart_new_episodes_are_not_taken_for_old_ones(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    for run in ("a", "b"):  # the same counter again, another id
        episode = make_episode(1, 3, id=f"t-{run}")
        replay.add(episode, label(episode))
    assert replay.size("online") == 6


def test_evicts_whole_episodes_oldest_first(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay(MemoryReplayConfig(capacity_steps=10))
    for number in range(1, 30):
        episode = make_episode(number, 4, purpose=Purpose.DEMO if number % 3 else Purpose.ONLINE)
        replay.add(episode, label(episode))
        assert replay.size("all") <= 10
        held = range(max(1, number - 1), number + 1)
        assert replay.ids() == [f"e{n}" for n in held]
        sampled = draw(replay, size=300)
        assert steps(sampled) == {(n, t) for n in held for t in range(4)}
        assert (sampled["next/state"] - sampled["observation/state"] == [0, 1]).all()  # also round the ring's seam


def test_relabel_changes_rewards_only(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    for number in (1, 2):
        episode = make_episode(number, 3)
        replay.add(episode, label(episode))
    replay.relabel(label(make_episode(1, 3), reward=5.0, terminal=False))
    sampled = draw(replay)
    first = sampled["observation/state"][:, 0] == 1
    assert sampled["reward"][first].min() == 5.0
    assert sampled["discount"][first].min() == 1.0
    assert sampled["reward"][~first].max() == 1.0
    with pytest.raises(UsageError, match=r"e9.*never added"):
        replay.relabel(label(make_episode(9, 3)))


def test_images_are_kept_on_request_as_uint8_and_once(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay(keys=("wrist",))
    episode = make_episode(1, 5)
    replay.add(episode, label(episode))
    into = {
        "observation/wrist": np.zeros((64, 4, 4, 3), np.uint8),
        "next/wrist": np.zeros((64, 4, 4, 3), np.uint8),
    }
    replay.sample(into, view="all", rng=np.random.default_rng(0))
    assert (into["next/wrist"] - into["observation/wrist"] == 1).all()
    with pytest.raises(UsageError, match=r"'observation/wrist' is uint8\[4, 4, 3\].*float32"):
        replay.sample(
            {"observation/wrist": np.zeros((64, 4, 4, 3), np.float32)},
            view="all",
            rng=np.random.default_rng(0),
        )
    with pytest.raises(UsageError, match="does not hold 'observation/state'"):
        replay.sample(batch(4), view="all", rng=np.random.default_rng(0))
    floats = make_episode(2, 5, image_dtype="float32")
    with pytest.raises(SpecMismatch, match=r"wrist.*float32\[4, 4, 3\].*uint8\[4, 4, 3\]"):
        replay.add(floats, label(floats))
    assert replay.size("all") == 5


def test_by_default_images_are_left_out(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    episode = make_episode(1, 5)
    replay.add(episode, label(episode))
    with pytest.raises(UsageError, match="does not hold 'observation/wrist'"):
        replay.sample(
            {"observation/wrist": np.zeros((1, 4, 4, 3), np.uint8)}, view="all", rng=np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"purpose": Purpose.EVAL}, "evaluation"),
        ({"outcome": Outcome.ABORTED}, "aborted"),
        ({"judgement": Outcome.ABORTED}, "aborted"),
    ],
)
def test_refuses_what_must_not_train(
    make_episode: Make, label: Label, change: dict[str, Any], message: str
) -> None:
    replay = MemoryReplay()
    episode = make_episode(1, 3, **change)
    with pytest.raises(UsageError, match=message):
        replay.add(episode, label(episode))
    assert replay.size("all") == 0


def test_refuses_gaps_the_unfinished_the_too_long_and_wrong_labels(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay(MemoryReplayConfig(capacity_steps=10))
    episode = make_episode(1, 6, cuts=(2, 4))
    a, _, c = episode.segments
    with pytest.raises(UsageError, match="gap: step 4 follows 1"):
        replay.add(dataclasses.replace(episode, segments=(a, c)), label(episode))
    with pytest.raises(UsageError, match="no last observation"):
        replay.add(dataclasses.replace(episode, segments=(a,)), label(episode))
    with pytest.raises(UsageError, match="6 steps, its rewards are"):
        replay.add(episode, dataclasses.replace(label(make_episode(2, 5)), episode_id="e1"))
    with pytest.raises(UsageError, match="labels of episode e2"):
        replay.add(episode, label(make_episode(2, 6)))
    with pytest.raises(UsageError, match="not all finite"):
        replay.add(episode, label(episode, reward=float("nan")))
    long = make_episode(3, 11)
    with pytest.raises(UsageError, match="raise capacity_steps"):
        replay.add(long, label(long))
    assert replay.size("all") == 0


def test_later_episodes_must_fit_the_first(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    first = make_episode(1, 3)
    replay.add(first, label(first))
    spec = first.robot
    others = {
        "limits": dataclasses.replace(spec, name="x5", action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,))),
        "joint_target": dataclasses.replace(spec, name="x5", action_kind="joint_target"),
        "control_hz 10.0.*has 20.0": dataclasses.replace(spec, name="x5", control_hz=20.0),
        "embodiment": dataclasses.replace(spec, name="x5", embodiment="arm6"),
    }
    replay_limits = MemoryReplay()
    bounded = make_episode(
        1, 3, robot=dataclasses.replace(spec, action=ArraySpec(shape=(1,), low=(-2.0,), high=(2.0,)))
    )
    replay_limits.add(bounded, label(bounded))
    for message, robot in others.items():
        other = make_episode(2, 3, robot=robot)
        with pytest.raises(SpecMismatch, match=message) as refused:
            (replay_limits if message == "limits" else replay).add(other, label(other))
        assert "'panda'" in str(refused.value)
        assert "'x5'" in str(refused.value)
    blind = make_episode(4, 3, robot=dataclasses.replace(spec, observation={"state": spec.observation["state"]}))
    replay.add(blind, label(blind))  # no camera: fine, images are not kept here
    asked = MemoryReplay(keys=("stat",))
    with pytest.raises(SpecMismatch, match="Did you mean 'state'"):
        asked.add(first, label(first))


def test_sampling_mistakes_are_named(make_episode: Make, label: Label) -> None:
    replay = MemoryReplay()
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="'prior' is empty"):
        replay.sample(batch(2), view="prior", rng=rng)
    with pytest.raises(UsageError, match="Did you mean 'online'"):
        replay.size("onlin")
    episode = make_episode(1, 3)
    replay.add(episode, label(episode))
    with pytest.raises(UsageError, match="one length"):
        replay.sample({**batch(2), "reward": np.zeros(3, np.float32)}, view="all", rng=rng)


def test_same_episodes_and_seed_give_the_same_batch_in_slices_of_the_callers_array(
    make_episode: Make, label: Label
) -> None:
    batches = []
    for _ in range(2):
        replay = MemoryReplay()
        for number in (1, 2, 3):
            episode = make_episode(number, 4, human=(1,))
            replay.add(episode, label(episode))
        whole, rng = batch(32), np.random.default_rng(7)
        replay.sample({key: out[:16] for key, out in whole.items()}, view="human", rng=rng)
        replay.sample({key: out[16:] for key, out in whole.items()}, view="online", rng=rng)
        batches.append(whole)
    for key, value in batches[0].items():
        np.testing.assert_array_equal(value, batches[1][key])
        assert np.isfinite(value).all()
    assert set(batches[0]["observation/state"][:16, 1]) == {1.0}
