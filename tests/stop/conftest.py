"""One case of the STOP matrix on a running system, which cases of the same file share."""

import pytest

from dovetail.bench.stop._matrix import Case, cases, pairwise, system_order
from dovetail.bench.stop._pool import SystemPool

BOUND_MS = 1000.0  # generous: other work runs beside the tests. `dovetail bench stop` measures.

_PAIRWISE = pairwise()


def cases_of(layout: str) -> list:
    """The pairwise cases of a layout are extended tests, all others slow ones."""
    ours = sorted((case for case in cases() if case.layout == layout), key=system_order)
    marks = {True: pytest.mark.extended, False: pytest.mark.slow}
    return [pytest.param(case, id=str(case), marks=marks[case in _PAIRWISE]) for case in ours]


@pytest.fixture(scope="module")
def systems():
    with SystemPool() as pool:
        yield pool


@pytest.fixture
def stops_all_arms(systems):
    """`stops_all_arms(case)`: every arm stands soon after the press, and gets no motion until it is acknowledged."""

    def check(case: Case) -> None:
        result = systems.run(case)
        assert result.worst_ms < BOUND_MS, result
        # A run whose disk is full may have ended before the source could press. Its arms stand.
        assert not result.problem or case.place == "full disk", result

    return check
