"""The cells of the STOP matrix: which exist, and that the pairwise subset covers every pair."""

import itertools

from dovetail.bench.stop._matrix import ARMS, LAYOUTS, PLACES, SOURCES, Case, cases, impossible, pairwise


def values(case):
    place = "paused" if case.place.startswith("paused") else case.place
    return list(enumerate((place, case.source, case.layout, case.arm)))


def pairs(some):
    return {pair for case in some for pair in itertools.combinations(values(case), 2)}


def test_pairwise_covers_every_pair_that_can_meet():
    chosen = pairwise()
    assert pairs(chosen) == pairs(cases())
    assert len(chosen) == len(set(chosen)) < len(list(cases())) / 4


def test_pairwise_has_every_paused_process():
    assert {case.place for case in pairwise()} == set(PLACES)


def test_every_cell_exists_or_has_a_reason():
    everything = [
        Case(place=place, source=source, layout=layout, arm=arm)
        for place, source, layout, arm in itertools.product(PLACES, SOURCES, LAYOUTS, ARMS)
    ]
    there = set(cases())
    for case in everything:
        assert (case in there) == (impossible(case) is None)
    assert {case.place for case in there} == set(PLACES)
    assert {case.source for case in there if case.layout == "processes"} == set(SOURCES)
