"""The replay against a simple reference model, with random operations."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.core.types import Episode, Labels, Purpose, Segment, View
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from support.replay_model import KEYS, Model, Refused, assert_matches_model
from support.traceable_episodes import ROBOT, label, make_traceable_episode

ROBOTS = [dataclasses.replace(ROBOT, name=name) for name in ("panda", "x5", "so101")]
TASKS = ("push_cube", "open_drawer")
SHM = Path("/dev/shm")

episodes = st.fixed_dictionaries(
    {
        "num_steps": st.integers(1, 7),
        "demo": st.sampled_from([False, False, True]),
        "human": st.sets(st.integers(0, 6)),
        "versions": st.lists(st.integers(0, 4), min_size=7, max_size=7),
        "jumps": st.lists(
            st.sampled_from([0, 0, 1, 2, -1]), min_size=8, max_size=8
        ),  # a slow camera; it may go back
        "robot": st.integers(0, 2),
        "task": st.integers(0, 1),
        "painter": st.integers(1, 2),
    }
)
which = st.integers(0, 30)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("new"), episodes, st.booleans(), st.booleans()),
        st.tuples(st.just("extend"), which, st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("extend"), which, st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("add"), which, st.integers(-3, 3), st.booleans()),
        st.tuples(st.just("relabel"), which, st.integers(-5, 5), st.booleans()),
        st.tuples(st.just("drop"), which),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    min_size=5,
    max_size=30,
)


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(8, 40), keep_demos=st.booleans(), todo=operations, seed=st.integers(0, 2**32 - 1))
def test_random_operations_match_reference_model(
    capacity: int, keep_demos: bool, todo: list[tuple[Any, ...]], seed: int
) -> None:
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        trial = Trial(Path(folder), capacity, keep_demos)
        for what, *arguments in todo:
            getattr(trial, what)(*arguments)
            trial.compare(seed)
        trial.reopen(keep_demos)
        trial.compare(seed)
        trial.replay.close()


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(6))
def test_many_operations_match_reference_model(seed: int) -> None:
    """Many turns of the ring with several running episodes."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        trial = Trial(Path(folder), dice.randint(16, 32), dice.random() < 0.7)
        for _ in range(140):
            what = dice.choices(("new", "extend", "add", "relabel", "drop", "reopen"), (5, 10, 4, 3, 1, 0.5))[0]
            arguments: dict[str, tuple[Any, ...]] = {
                "new": (_random_episode(dice), dice.random() < 0.3, dice.random() < 0.5),
                "extend": (dice.randint(0, 30), dice.randint(0, 3), dice.randint(0, 5)),
                "add": (dice.randint(0, 30), dice.randint(-3, 3), dice.random() < 0.5),
                "relabel": (dice.randint(0, 30), dice.randint(-5, 5), dice.random() < 0.5),
                "drop": (dice.randint(0, 30),),
                "reopen": (trial.model.keep_demos,),
            }
            getattr(trial, what)(*arguments[what])
            trial.compare(dice.randint(0, 1000))
        assert trial.model.head_row > 3 * trial.capacity  # several turns of the ring
        trial.replay.close()


def _random_episode(dice: random.Random) -> dict[str, Any]:
    return {
        "num_steps": dice.randint(1, 7),
        "demo": dice.random() < 0.1,
        "human": {t for t in range(7) if dice.random() < 0.3},
        "versions": sorted(dice.choices(range(5), k=7)),
        "jumps": dice.choices([0, 0, 1, 2, -1], k=8),
        "robot": dice.randint(0, 2),
        "task": dice.randint(0, 1),
        "painter": dice.randint(1, 2),
    }


class Trial:
    """Applies every operation to the replay and to the model."""

    def __init__(self, folder: Path, capacity: int, keep_demos: bool) -> None:
        self.folder, self.capacity = folder, capacity
        self.model = Model(capacity, keep_demos)
        self.known: list[Episode] = []
        self.replay = self._open()

    def _open(self) -> MappedReplay:
        config = MappedReplayConfig(capacity_rows=self.capacity, keep_demos=self.model.keep_demos)
        replay = MappedReplay(config, folder=self.folder, keys=KEYS)
        assert replay.open() is None
        return replay

    def _both(self, name: str, *arguments: Any, model: tuple[Any, ...] = ()) -> None:
        try:
            getattr(self.model, name)(*arguments, *model)
            refused = False
        except Refused:
            refused = True
        with pytest.raises(UsageError) if refused else contextlib.nullcontext():
            getattr(self.replay, name)(*arguments)

    def _pick(self, index: int) -> Episode:
        return (
            self.known[-1 - index % min(len(self.known), 4)] if index % 3 else self.known[index % len(self.known)]
        )

    def new(self, given: dict[str, Any], now: bool, terminal: bool) -> None:
        num_steps, number = given["num_steps"], len(self.known)
        episode = make_traceable_episode(
            number,
            num_steps,
            human=tuple(given["human"]),
            versions=given["versions"][:num_steps],
            frames=[8 + f for f in itertools.accumulate(given["jumps"][: num_steps + 1])],
            painter=given["painter"],
            cuts=(num_steps // 2,) if num_steps > 1 else (),
            robot=ROBOTS[given["robot"]],
            task=TASKS[given["task"]],
            purpose=Purpose.DEMO if given["demo"] else Purpose.ONLINE,
        )
        self.known.append(episode)
        if now:
            self._both("add", episode, _labels(episode, 0, terminal))

    def extend(self, index: int, num_back: int, num_steps: int) -> None:
        """From a step that may have been sent already on; to the end, and with it, if that comes first."""
        if self.known:
            episode = self._pick(index)
            held = self.model.held(episode.id)
            first = max(0, (held.num_steps if held else 0) - num_back)
            segment = _segment(episode, first, first + num_steps)
            self._both("extend", episode.start, segment, model=(episode,))

    def add(self, index: int, reward: int, terminal: bool) -> None:
        if self.known:
            episode = self._pick(index)
            self._both("add", episode, _labels(episode, reward, terminal))

    def relabel(self, index: int, reward: int, terminal: bool) -> None:
        if self.known:
            self._both("relabel", _labels(self._pick(index), reward, terminal))

    def drop(self, index: int) -> None:
        if self.known:
            self._both("drop", self._pick(index).id)

    def reopen(self, keep_demos: bool) -> None:
        self.replay.close()
        self.model.keep_demos = keep_demos
        self.replay = self._open()

    # ---- comparing

    def compare(self, seed: int) -> None:
        assert self.replay.ids() == self.model.ids()
        for episode in self.known:
            assert self.replay.was_added(episode.id) == (episode.id in self.model.whole)
        assert_matches_model(self.replay, self.model, seed=seed)
        self._compare_weights(View(half_life_steps=3.0, part=("all", "online")[seed % 2]))

    def _compare_weights(self, view: View) -> None:
        """How likely each run of steps is, against the sum of what its steps should be."""
        assert view.half_life_steps is not None
        expected = self.model.view(view)
        assert self.replay.size(view) == len(expected)
        if not expected:
            return
        newest = max(record.born[tick] for record, tick in expected)
        wanted = {
            record.rows[tick]: 2.0 ** ((record.born[tick] - newest) / view.half_life_steps)
            for record, tick in expected
        }
        state = self.replay._reader._refresh()
        assert state is not None
        choice = state[1].steps_of(view)
        runs = [range(a, a + n) for a, n in zip(choice.rows, choice.num_steps, strict=True)]
        assert [row for run in runs for row in run] == [record.rows[tick] for record, tick in expected]
        np.testing.assert_allclose(
            np.diff(choice.ends, prepend=0.0),
            [sum(wanted[row] for row in run) for run in runs],
            rtol=1e-9,
            atol=1e-12,
        )
        drawn = set(choice.draw(np.random.default_rng(0), 100).tolist())
        assert drawn <= set(wanted)


def _segment(episode: Episode, first: int, last: int) -> Segment:
    whole = {name: episode.column(name) for name in episode.segments[0].columns}
    final = last >= len(episode)
    return Segment(
        episode_id=episode.id,
        first=first,
        final=final,
        columns={name: column[first:last] for name, column in whole.items()},
        last_observation=episode.last_observation if final else None,
    )


def _labels(episode: Episode, reward: int, terminal: bool) -> Labels:
    """Rewards that differ from step to step."""
    rewards = (reward + np.arange(len(episode)) % 3).astype(np.float32)
    return dataclasses.replace(
        label(episode, terminal=terminal, success=terminal and reward >= 0), rewards=rewards
    )
