"""Conformance suite for replays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dovetail.core.contracts import Replay
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose, Source, View, Window
from dovetail.testing._episodes import STATE, make_robot_spec, random_episode, random_labels
from dovetail.testing._rig import copied, expect, expect_same

__all__ = ["check_replay"]

_ROWS = 64
_WINDOWS = (Window(), Window(gamma=0.9, num_steps=3))
_Stored = Mapping[int, tuple[Episode, Labels]]  # by episode number


def check_replay(make_replay: Callable[[Path], Replay]) -> None:
    """Add, extend, relabel, drop and sample random episodes, and compare each row with the recorded step.

    `make_replay(folder)` builds a replay that stores at least 100 steps and the observation `state`. The suite opens it.
    """
    with tempfile.TemporaryDirectory(prefix="check-replay-") as name:
        folder = Path(name)
        replay = make_replay(folder)
        expect(isinstance(replay, Replay), f"{type(replay).__name__} does not implement all of Replay")
        replay.open()
        try:
            stored = _check_add(replay)
            _check_samples(replay, stored)
            _check_refusals(replay)
            stored = _check_relabel_and_drop(replay, stored)
            stored = _check_extend(replay, stored)
            batch = _check_samples(replay, stored)
        finally:
            replay.close()
        _check_reopen(make_replay(folder), stored, batch)


def _check_add(replay: Replay) -> _Stored:
    expect(replay.ids() == [], f"ids() of a new replay should be empty, got {replay.ids()}")
    expect(replay.size(View()) == 0, f"size() of a new replay should be 0, got {replay.size(View())}")
    num_rows = replay.total_rows(make_robot_spec())
    expect(num_rows >= 100, f"total_rows() should be at least 100 rows for this suite, got {num_rows}")
    episodes = (
        random_episode(0, purpose=Purpose.DEMO),
        random_episode(1, outcome=Outcome.TIMEOUT, num_steps=5),
        random_episode(2, outcome=Outcome.FAILURE, num_steps=4),
    )
    stored = {number: (one, random_labels(one)) for number, one in enumerate(episodes)}
    for _ in range(2):  # the second time must change nothing
        for episode, labels in stored.values():
            replay.add(episode, labels)
            expect(replay.was_added(episode.id), "was_added() is false for an episode that was added")
    expect(not replay.was_added("another"), "was_added() is true for an episode that was never added")
    _check_sizes(replay, stored)
    return stored


def _check_sizes(replay: Replay, stored: _Stored) -> None:
    ids = sorted(episode.id for episode, _ in stored.values())
    expect(sorted(replay.ids()) == ids, f"ids() should be {ids}, got {replay.ids()}")
    demo = sum(len(episode) for episode, _ in stored.values() if episode.purpose is Purpose.DEMO)
    total = sum(len(episode) for episode, _ in stored.values())
    for part, num_steps in {"all": total, "demo": demo, "online": total - demo}.items():
        size = replay.size(View(part=part))
        expect(size == num_steps, f"size() of view '{part}' should be {num_steps} steps, got {size}")


def _check_samples(replay: Replay, stored: _Stored) -> Mapping[str, Array]:
    batch: Mapping[str, Array] = {}
    for window in _WINDOWS:
        batch, again = _sample(replay, window), _sample(replay, window)
        expect_same(batch, again, "sample() gave different batches for the same rng seed")
        for row in range(_ROWS):
            _check_row({name: values[row] for name, values in batch.items()}, stored, window)
    only = _sample(replay, Window(), View(part="demo"))[f"observation/{STATE}"][:, 0]
    expect((only == 0).all(), "sample() of view 'demo' returned steps of other episodes")
    return batch


def _sample(replay: Replay, window: Window, view: View | None = None) -> dict[str, Array]:
    into: dict[str, Array] = {
        f"observation/{STATE}": np.full((_ROWS, 2), np.nan, np.float32),
        f"next/{STATE}": np.full((_ROWS, 2), np.nan, np.float32),
        "action": np.full((_ROWS, 2), np.nan, np.float32),
        "reward": np.full(_ROWS, np.nan, np.float32),
        "discount": np.full(_ROWS, np.nan, np.float32),
        "human": np.zeros(_ROWS, np.bool_),
    }
    replay.sample(into, view=view or View(), rng=np.random.default_rng(0), window=window)
    return copied(into)


def _check_row(row: Mapping[str, Array], stored: _Stored, window: Window) -> None:
    number, tick = (int(value) for value in np.nan_to_num(row[f"observation/{STATE}"], nan=-1))
    expect(number in stored, f"sample() returned a step of episode number {number}, which is not stored")
    episode, labels = stored[number]
    where = f"sampled step {tick} of {episode.id} (num_steps={window.num_steps})"
    last = min(tick + window.num_steps, len(episode))
    gammas = window.gamma ** np.arange(last - tick)
    expected = {
        "action": episode.column("executed")[tick],
        "reward": (gammas * labels.rewards[tick:last]).sum(),
        "discount": window.gamma ** (last - tick) * labels.discounts[last - 1],
        "human": episode.column("source")[tick] == Source.HUMAN,
    }
    if expected["discount"] > 0:  # after a terminal step the next observation has no meaning
        expected[f"next/{STATE}"] = np.array((number, last))
    for name, value in expected.items():
        same = np.allclose(row[name], value, rtol=1e-4, atol=1e-5)
        expect(same, f"{where}: '{name}' should be {value}, got {row[name]}")


def _check_refusals(replay: Replay) -> None:
    refused = {
        "an evaluation": random_episode(10, purpose=Purpose.EVAL),
        "an aborted episode": random_episode(11, outcome=Outcome.ABORTED),
    }
    for what, episode in refused.items():
        size = replay.size(View())
        try:
            replay.add(episode, random_labels(episode))
        except UsageError:
            expect(replay.size(View()) == size, f"add() raised UsageError for {what} but stored its steps")
            continue
        raise AssertionError(f"add() accepted {what}: it should raise UsageError")


def _check_relabel_and_drop(replay: Replay, stored: _Stored) -> _Stored:
    episode, _ = stored[1]
    stored = {**stored, 1: (episode, random_labels(episode, seed=7))}
    replay.relabel(stored[1][1])
    _check_samples(replay, stored)
    dropped, _ = stored[2]
    for _ in range(2):
        replay.drop(dropped.id)
    expect(replay.was_dropped(dropped.id), "was_dropped() is false after drop()")
    expect(not replay.was_dropped(episode.id), "was_dropped() is true for an episode that was not dropped")
    expect(replay.was_added(dropped.id), "was_added() is false for a dropped episode: it would be added again")
    replay.skip("skipped", make_robot_spec(), num_steps=3)
    expect(replay.was_added("skipped"), "was_added() is false after skip()")
    stored = {number: one for number, one in stored.items() if number != 2}
    _check_sizes(replay, stored)
    return stored


def _check_extend(replay: Replay, stored: _Stored) -> _Stored:
    episode, size = random_episode(3), replay.size(View())
    labels = random_labels(episode)
    replay.extend(episode.start, episode.segments[0])
    grown = replay.size(View()) - size
    expect(0 < grown <= len(episode), f"extend() with {len(episode)} steps added {grown} steps")
    running = _sample(replay, Window())
    rows = running[f"observation/{STATE}"][:, 0] == 3
    expect((running["discount"][rows] > 0).all(), "a step of a running episode is terminal")
    replay.add(episode, labels)
    stored = {**stored, 3: (episode, labels)}
    _check_sizes(replay, stored)
    return stored


def _check_reopen(replay: Replay, stored: _Stored, batch: Mapping[str, Array]) -> None:
    """A replay that cannot load its content must give the reason and start empty."""
    reason = replay.open()
    try:
        if reason is None:
            _check_sizes(replay, stored)
            expect_same(batch, _sample(replay, _WINDOWS[-1]), "sample() after open() differs from before close()")
        replay.reset()
        expect(replay.ids() == [], "ids() is not empty after reset()")
        expect(not replay.was_added(stored[0][0].id), "was_added() is true after reset()")
    finally:
        replay.close()
