"""The replay against a naive list of transitions, over random episodes, evictions and relabels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.types import Episode, Labels, Purpose, Source
from dovetail.replay.memory import VIEWS, MemoryReplay, MemoryReplayConfig

Transition = tuple[tuple[float, ...], tuple[float, ...], float, float, float]


@dataclass
class Model:
    """Whole episodes in a list; a view is a filter over it."""

    capacity_steps: int
    held: list[tuple[Episode, Labels]] = field(default_factory=list)

    def add(self, episode: Episode, labels: Labels) -> None:
        self.held.append((episode, labels))
        while sum(len(e) for e, _ in self.held) > self.capacity_steps:
            self.held.pop(0)

    def relabel(self, labels: Labels) -> None:
        self.held = [(e, labels if e.id == labels.episode_id else old) for e, old in self.held]

    def view(self, name: str, *, gamma: float, num_steps: int) -> list[Transition]:
        found = []
        for episode, labels in self.held:
            demo = episode.purpose is Purpose.DEMO
            states = [*episode.column("observation/state"), episode.last_observation.values["state"]]
            for t in range(len(episode)):
                human = not demo and episode.column("source")[t] == Source.HUMAN
                wanted = {
                    "all": True,
                    "demo": demo,
                    "online": not demo,
                    "human": human,
                    "policy": not demo and not human,
                    "prior": demo or human,
                }
                if wanted[name]:
                    action = float(episode.column("executed")[t][0])
                    reward, weight, end = 0.0, 1.0, min(t + num_steps, len(episode))
                    for k in range(t, end):
                        reward += weight * float(labels.rewards[k])
                        weight *= gamma * float(labels.discounts[k])
                    found.append((tuple(states[t].tolist()), tuple(states[end].tolist()), action, reward, weight))
        return found


episodes = st.tuples(
    st.integers(1, 9),  # steps
    st.booleans(),  # demo
    st.sets(st.integers(0, 8)),  # human steps
    st.booleans(),  # terminal
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), episodes),
        st.tuples(st.just("again"), st.integers(0, 30)),
        st.tuples(st.just("relabel"), st.tuples(st.integers(0, 30), st.integers(-5, 5), st.booleans())),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(
    capacity=st.integers(9, 40),
    todo=operations,
    seed=st.integers(0, 2**32 - 1),
    initial_rows=st.integers(1, 8),
)
def test_answers_like_the_model(
    make_episode: Callable[..., Episode],
    label: Callable[..., Labels],
    capacity: int,
    todo: list[tuple[str, object]],
    seed: int,
    initial_rows: int,
) -> None:
    replay = MemoryReplay(MemoryReplayConfig(capacity_steps=capacity))
    replay.INITIAL_ROWS = initial_rows  # small, so that growing is tried at every stage of the ring
    model = Model(capacity)
    known: list[Episode] = []
    for what, argument in todo:
        if what == "add":
            num_steps, demo, human, terminal = argument
            purpose = Purpose.DEMO if demo else Purpose.ONLINE
            cuts = (num_steps // 2,) if num_steps > 1 else ()
            episode = make_episode(len(known), num_steps, human=tuple(human), purpose=purpose, cuts=cuts)
            labels = label(episode, terminal=terminal)
            known.append(episode)
            replay.add(episode, labels)
            model.add(episode, labels)
        elif known and what == "again":
            episode = known[argument % len(known)]
            replay.add(episode, label(episode, reward=99.0))
        elif known:
            which, reward, terminal = argument
            labels = label(known[which % len(known)], reward=float(reward), terminal=terminal)
            replay.relabel(labels)
            model.relabel(labels)
        assert replay.ids() == [e.id for e, _ in model.held]
        _compare(replay, model, seed)


@pytest.mark.parametrize("seed", range(4))
def test_short_episodes_after_long_ones_make_a_ring_grow_that_has_gone_round(
    make_episode: Callable[..., Episode], label: Callable[..., Labels], seed: int
) -> None:
    """Each episode takes a row more than it has steps, so at capacity it is the short ones that need more rows."""
    rng = np.random.default_rng(seed)
    replay, model = MemoryReplay(MemoryReplayConfig(capacity_steps=48)), Model(48)
    for number in range(120):
        num_steps = int(rng.integers(5, 12)) if number < 40 else int(rng.integers(1, 3))
        episode = make_episode(
            number, num_steps, human=(0, 2), purpose=Purpose.DEMO if number % 3 else Purpose.ONLINE
        )
        replay.add(episode, label(episode))
        model.add(episode, label(episode))
        oldest = model.held[int(rng.integers(len(model.held)))][0]
        newer = label(oldest, reward=float(number), terminal=False)
        replay.relabel(newer)
        model.relabel(newer)
        _compare(replay, model, seed)


def _compare(replay: MemoryReplay, model: Model, seed: int) -> None:
    for view, num_steps in itertools.product(VIEWS, (1, 3)):
        gamma = 0.5  # a power of two, so that sums are exact in any precision
        expected = model.view(view, gamma=gamma, num_steps=num_steps)
        assert replay.size(view) == len(expected)
        if not expected:
            continue
        into = {
            "observation/state": np.empty((16, 2), np.float32),
            "next/state": np.empty((16, 2), np.float32),
            "action": np.empty((16, 1), np.float32),
            "reward": np.empty(16, np.float32),
            "discount": np.empty(16, np.float32),
        }
        replay.sample(into, view=view, rng=np.random.default_rng(seed), gamma=gamma, num_steps=num_steps)
        rows = np.random.default_rng(seed).integers(len(expected), size=16)
        got = [
            (tuple(s.tolist()), tuple(n.tolist()), float(a[0]), float(r), float(d))
            for s, n, a, r, d in zip(*into.values(), strict=True)
        ]
        assert got == [expected[row] for row in rows]
