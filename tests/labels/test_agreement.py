"""Agreement of labelers, against numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.labels._label_file import LabelRecord
from dovetail.labels.agreement import Agreement, agreements, verdicts
from support.example_labels import labels


def table(both_success: int, only_first: int, only_second: int, both_failure: int) -> Agreement:
    return Agreement(
        first="vlm",
        second="human",
        both_success=both_success,
        only_first=only_first,
        only_second=only_second,
        both_failure=both_failure,
    )


def test_agreement_matches_values_computed_by_hand() -> None:
    """50 episodes: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no. They agree on 35, 0.7 of them. The first answers yes for half
    of them, the second to 0.6: chance agrees on 0.5 * 0.6 + 0.5 * 0.4 = 0.5. (0.7 - 0.5) / (1 - 0.5) = 0.4."""
    found = table(20, 5, 10, 15)
    assert found.num_episodes == 50
    assert found.share == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)
    assert found.precision == pytest.approx(20 / 25)
    assert found.recall == pytest.approx(20 / 30)


def test_kappa_is_lower_for_unbalanced_labels() -> None:
    """Agreement on 90 of 100, but two labelers with 95 successes each agree by chance in
    0.95 * 0.95 + 0.05 * 0.05 = 0.905: (0.9 - 0.905) / 0.095 = -0.0526."""
    assert table(90, 5, 5, 0).kappa == pytest.approx(-0.005 / 0.095)
    assert table(45, 5, 5, 45).kappa == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        ((7, 0, 0, 3), 1.0),  # always the same
        ((0, 5, 5, 0), -1.0),  # always the opposite, half and half
        ((5, 5, 0, 0), 0.0),  # one always answers yes: no better than chance
        ((25, 25, 25, 25), 0.0),  # a coin
        ((9, 0, 0, 0), None),  # both always answer yes: undefined
        ((0, 0, 0, 9), None),
        ((0, 4, 0, 0), 0.0),  # one always answers yes, the other no: chance agreement is 0
        ((0, 0, 0, 0), None),  # nothing in common
        ((1, 0, 0, 0), None),
    ],
)
def test_kappa_of_perfect_and_chance_agreement(counts: tuple[int, int, int, int], kappa: float | None) -> None:
    found = table(*counts).kappa
    assert found == (None if kappa is None else pytest.approx(kappa))


def test_ratios_without_episodes_are_none() -> None:
    nothing = table(0, 0, 0, 0)
    assert (nothing.share, nothing.precision, nothing.recall) == (None, None, None)
    assert table(0, 0, 3, 4).precision is None  # it never answered yes
    assert table(0, 3, 0, 4).recall is None  # there was nothing to find


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_kappa_matches_definition_and_is_symmetric(pairs: list[tuple[bool, bool]]) -> None:
    """Compared with the definition in floating point, with the labelers in both orders."""
    (found,) = agreements([{"a": a, "b": b} for a, b in pairs])
    (turned,) = agreements([{"a": b, "b": a} for a, b in pairs])
    assert found.kappa == turned.kappa
    yes = np.array(pairs).mean(axis=0)
    chance = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    agreed = np.mean([a == b for a, b in pairs])
    if found.kappa is None:
        assert chance == 1.0
    else:
        assert found.kappa == pytest.approx((agreed - chance) / (1 - chance))
        assert found.kappa <= 1.0


def test_agreements_compare_common_episodes_of_each_pair() -> None:
    episodes = [
        {"vlm": True, "human": True, "outcome": True},
        {"vlm": True, "human": False},
        {"outcome": False, "vlm": False},
        {"classifier": True},
        {},
    ]
    found = {(pair.first, pair.second): pair for pair in agreements(episodes)}
    assert set(found) == {("outcome", "human"), ("vlm", "human"), ("outcome", "vlm")}
    assert found["vlm", "human"].num_episodes == 2
    assert found["vlm", "human"].only_first == 1
    assert found["outcome", "vlm"].share == 1.0


def test_last_label_of_each_labeler_is_compared() -> None:
    """All versions count; retracted and discarded labels do not."""
    given = [
        labels(labeler="vlm", version="1", success=True),
        labels(labeler="outcome", success=True, priority=-1),
        labels(labeler="vlm", version="2", success=False),
    ]
    records = [LabelRecord(labels=each, added_unix_ns=time) for each, time in zip(given, itertools.count())]
    assert verdicts(records) == {"vlm": False, "outcome": True}
    retracted_record = LabelRecord(labels=given[2], added_unix_ns=9, retracted=True)
    assert verdicts([*records[:2], retracted_record]) == {"vlm": True, "outcome": True}
    discarded = labels(labeler="human", success=False, discard=True)
    assert verdicts([*records, LabelRecord(labels=discarded, added_unix_ns=9)]) == {
        "vlm": False,
        "outcome": True,
    }
