"""100 MB of new weights are taken during an episode, and no tick is missed."""

import pytest

from dovetail.bench._control_loops import weight_swaps


@pytest.mark.extended
def test_100_mb_of_new_weights_miss_no_tick():
    _, busy = weight_swaps(seconds=8.0)
    assert busy["weights_swaps"] >= 1
    assert busy["missed"] + busy.get("starved", 0.0) == 0
