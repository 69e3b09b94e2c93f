"""STOP with layout 'one process': from every source, wherever the system is stuck. See docs/safety.md."""

import pytest

from stop.conftest import cases_of


@pytest.mark.parametrize("case", cases_of("one process"))
def test_stop_reaches_every_arm(stops_all_arms, case):
    stops_all_arms(case)
