"""Views with a half-life sample older steps less often, with exact weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail.core.types import Array, Purpose, View
from dovetail.replay._snapshot import ViewSteps
from dovetail.replay.mapped import MappedReplay
from support.traceable_episodes import batch, label, make_traceable_episode, steps

Open = Callable[..., MappedReplay]


class Grid:
    """A generator that returns the middle of each of N equal parts instead of random numbers."""

    def __init__(self, size: int) -> None:
        self._size, self._turn = size, 0

    def random(self, count: int) -> Array:
        middles = (np.arange(self._size) + 0.5) / self._size
        self._turn += 1
        assert count == self._size**2
        return np.repeat(middles, self._size) if self._turn % 2 else np.tile(middles, self._size)


def choice_of(replay: MappedReplay, view: View) -> ViewSteps:
    assert replay.size(view)
    state = replay._reader._state
    assert state is not None
    return state[1].steps_of(view)


def test_step_one_half_life_older_is_sampled_half_as_often(open_replay: Open) -> None:
    replay = open_replay()
    for number, num_steps in ((1, 1), (2, 9), (3, 2), (4, 4)):
        episode = make_traceable_episode(number, num_steps, human=(1, 2))
        replay.add(episode, label(episode))
    view, size = View(half_life_steps=5.0, part="online"), 600
    choice = choice_of(replay, view)
    rows, counts = np.unique(choice.draw(Grid(size), size**2), return_counts=True)
    wanted = np.exp2(rows / 5.0)
    assert len(rows) == 16
    np.testing.assert_allclose(counts / size**2, wanted / wanted.sum(), atol=2 * len(choice.rows) / size)
    # and within one run of steps, which is drawn as one, to the last digit that the grid can show
    alone = choice_of(replay, View(half_life_steps=5.0, part="policy", versions=(0, 0)))
    longest = int(np.argmax(alone.num_steps))
    run = ViewSteps(
        *(values[longest : longest + 1] for values in (alone.rows, alone.num_steps, alone.ends)), alone.decay
    )
    rows, counts = np.unique(run.draw(Grid(size), size**2), return_counts=True)
    wanted = np.exp2(rows / 5.0)
    np.testing.assert_allclose(counts / size**2, wanted / wanted.sum(), atol=1.5 / size)


def test_old_view_with_half_life_samples_all_its_steps(open_replay: Open) -> None:
    """Relative to the newest step of the replay, all weights of this view would underflow to zero."""
    replay = open_replay(capacity_rows=6000, keep_demos=False)
    for number in (1, 2):
        demo = make_traceable_episode(number, 3, purpose=Purpose.DEMO)
        replay.add(demo, label(demo))
    long = make_traceable_episode(3, 5900)
    replay.add(long, label(long))
    into = batch(500)
    replay.sample(into, view=View(part="demo", half_life_steps=2.0), rng=np.random.default_rng(0))
    assert steps(into) == {(n, t) for n in (1, 2) for t in range(3)}
    replay.sample(
        into, view=View(half_life_steps=1.0), rng=np.random.default_rng(0)
    )  # the weights of old steps underflow
    assert into["observation/state"][:, 0].min() == 3
    assert into["observation/state"][:, 1].min() > 5900 - 64
    replay.sample(into, view=View(half_life_steps=1e12), rng=np.random.default_rng(0))  # equal weights
    assert len(steps(into)) > 400


@pytest.mark.parametrize("draw", [0.0, 0.5, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("half_life_steps", [1.0, 3.0, 1e3, 1e9, 1e15])
def test_extreme_random_numbers_select_valid_steps(open_replay: Open, draw: float, half_life_steps: float) -> None:
    class Same:
        def random(self, count: int) -> Array:
            return np.full(count, draw)

    replay = open_replay()
    for number in (1, 2):
        episode = make_traceable_episode(number, 4, human=(1,))
        replay.add(episode, label(episode))
    rows = choice_of(replay, View(half_life_steps=half_life_steps)).draw(Same(), 3)
    assert set(rows.tolist()) <= {0, 1, 2, 3, 5, 6, 7, 8}


def test_moved_demonstration_keeps_its_age(open_replay: Open) -> None:
    replay = open_replay(capacity_rows=40)
    demo = make_traceable_episode(1, 3, purpose=Purpose.DEMO, cuts=(1,))
    other = make_traceable_episode(2, 3)
    replay.extend(demo.start, demo.segments[0])
    replay.add(other, label(other))  # in between
    replay.add(demo, label(demo))
    for number in range(3, 20):
        episode = make_traceable_episode(number, 7)
        replay.add(episode, label(episode))
    assert "e1" in replay.ids()
    newest = 1 + 4 + 3 + 17 * 8 - 2  # rows before the newest step
    born = [0, 5, 6]  # where its three steps lay first
    choice = choice_of(replay, View(half_life_steps=20.0))
    weights = np.diff(choice.ends, prepend=0.0)
    steps_of = dict(zip(choice.rows.tolist(), zip(choice.num_steps.tolist(), weights, strict=True), strict=True))
    demos = choice_of(replay, View(part="demo"))
    found = [steps_of[row] for row in demos.rows.tolist()]
    assert [n for n, _ in found] == [1, 2]
    wanted = [2.0 ** ((row - newest) / 20.0) for row in born]
    np.testing.assert_allclose([w for _, w in found], [wanted[0], wanted[1] + wanted[2]], rtol=1e-9, atol=1e-12)
