"""Plans and modes against values computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.actor.modes import Naive, Plan, Rtc, Sequential, Soft
from dovetail.core.errors import UsageError
from support.acting import SPEC

NAN = np.nan


def plan(values, *, origin=0, num_usable=None):
    actions = np.array(values, np.float32)[:, None]
    return Plan(
        actions=actions,
        origin=origin,
        num_usable=len(actions) if num_usable is None else num_usable,
        policy_version=3,
        chunk_id=4,
    )


@pytest.mark.parametrize(
    ("tick", "expected"),
    [
        (10, [0, 1, 2, 3, NAN]),  # the last of five may not be executed
        (12, [2, 3, NAN, NAN, NAN]),
        (13, [3, NAN, NAN, NAN, NAN]),
        (14, [NAN] * 5),
        (99, [NAN] * 5),
    ],
)
def test_rest_of_a_plan_is_padded_with_nan(tick, expected):
    """Trap: what was beyond the end was zero, and zeros are a place to go to."""
    rest = plan([0, 1, 2, 3, 4], origin=10, num_usable=4).rest(tick)
    assert rest.dtype == np.float32
    np.testing.assert_array_equal(rest[:, 0], expected)


def test_plan_covers_its_ticks_and_is_due_after_the_horizon():
    short = plan([0, 1, 2, 3, 4], origin=10, num_usable=4)
    assert [short.covers(tick) for tick in (9, 10, 13, 14)] == [False, True, True, False]
    assert [short.is_due(tick, horizon=2) for tick in (10, 11, 12)] == [False, False, True]
    assert [short.is_due(tick, horizon=9) for tick in (13, 14)] == [False, True]  # used up


def test_sequential_starts_the_chunk_when_it_is_ready():
    placed = Sequential().place(plan(range(5), origin=10), before=None, tick=13, horizon=3)
    assert (placed.origin, placed.num_usable) == (13, 3)
    assert placed.actions[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert Sequential().place(plan(range(5)), before=None, tick=0, horizon=99).num_usable == 5


@pytest.mark.parametrize("mode", [Naive(), Rtc()])
def test_naive_and_rtc_start_within_the_chunk(mode):
    answer = plan(range(5), origin=10)
    assert mode.place(answer, before=plan([9] * 5, origin=8), tick=12, horizon=3) is answer


def test_only_rtc_gives_committed_actions_to_the_policy():
    running = plan([0, 1, 2, 3, 4], origin=10)
    for mode in (Sequential(), Naive(), Soft()):
        assert mode.prefix(running, tick=12) is None
    np.testing.assert_array_equal(Rtc().prefix(running, tick=12)[:, 0], [2, 3, 4, NAN, NAN])
    assert Rtc().prefix(running, tick=15) is None
    assert Rtc().prefix(None, tick=15) is None


def test_which_modes_overlap_inference_and_motion():
    assert [mode.overlaps for mode in (Sequential(), Naive(), Rtc(), Soft())] == [False, True, True, True]


# ---- soft: 6 actions of 0 from tick 0 on, an answer of ones about tick 2


def test_soft_blend_matches_values_computed_by_hand():
    """It comes at tick 3. Ticks 3, 4 and 5 are shared: three quarters, a half, a quarter of the old one."""
    placed = Soft().place(plan([1] * 6, origin=2), before=plan([0] * 6), tick=3, horizon=3)
    assert placed.actions[:, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1]
    assert (placed.origin, placed.num_usable) == (2, 6)
    assert placed.actions.dtype == np.float32


def test_soft_without_an_old_plan_uses_the_chunk():
    answer = plan([1] * 6, origin=2)
    assert Soft().place(answer, before=None, tick=3, horizon=3) is answer
    assert Soft().place(answer, before=plan([0] * 6, origin=-3), tick=3, horizon=3) is answer  # used up


values = st.lists(st.floats(-10, 10, width=32), min_size=8, max_size=8)


@given(values, values, st.integers(1, 6), st.integers(0, 6))
def test_soft_blend_is_continuous_and_reaches_the_new_chunk(old, new, asked, delay):
    before, answer = plan(old), plan(new, origin=asked)
    tick = asked + delay
    if not before.covers(tick):
        return
    placed = Soft().place(answer, before=before, tick=tick, horizon=4).actions[:, 0]
    num_shared = 8 - tick
    np.testing.assert_array_equal(placed[8 - asked :], np.array(new[8 - asked :], np.float32))
    along = np.array([old[asked + i] for i in range(8 - asked)])
    share = (placed[: 8 - asked] - along)[delay:]  # how far it has left the old plan at each tick they share
    gap = (np.array(new[: 8 - asked]) - along)[delay:]
    # at the border one part of several of the gap, each tick one part more
    np.testing.assert_allclose(share, gap * np.arange(1, num_shared + 1) / (num_shared + 1), atol=1e-4)


# ---- what a mode refuses


@pytest.mark.parametrize("mode", [Naive(), Rtc(), Soft()])
def test_single_actions_are_rejected_by_overlapping_modes(mode):
    with pytest.raises(UsageError, match=r"'scripted' gives single actions.*use actor\.type=sequential"):
        mode.check(replace(SPEC, horizon=1))
    Sequential().check(replace(SPEC, horizon=1))


def test_rtc_rejects_a_policy_without_guidance():
    stubborn = replace(SPEC, guidable=False)
    with pytest.raises(UsageError, match=r"'scripted' cannot be guided.*or actor\.type=soft"):
        Rtc().check(stubborn)
    for mode in (Sequential(), Naive(), Soft()):
        mode.check(stubborn)
    Rtc().check(SPEC)
