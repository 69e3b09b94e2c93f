"""Arms that do not share the memory of the run's STOP, as on other machines: the Ray driver relays it."""

import os
import signal
import time

import pytest

from dovetail.bench.stop._system import StopSystem, wait_for
from dovetail.config.cluster import ClusterConfig
from stop.conftest import BOUND_MS

pytestmark = pytest.mark.extended

LINK_MS = 1000.0 * ClusterConfig().stop_link_timeout_s


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    folder = tmp_path_factory.mktemp("far")
    with StopSystem(folder, layout="Ray", num_arms=2, driver="far_arm:FarSocketArm") as system:
        for arm in ("arm-0", "arm-1"):
            assert (system.run_folder / "robots" / arm / "stop.json").exists()  # it has a memory of its own
        yield system


@pytest.mark.parametrize("source", ["console", "gamepad", "pedal", "dovetail stop"])
def test_stop_is_relayed_to_both_arms(system, source, record_property):
    result = system.press(source)
    record_property("delays_ms", result.delays_ms)
    assert result.worst_ms < BOUND_MS, result
    system.acknowledge()


def test_arm_stands_still_without_the_relay_and_moves_again_with_it(system, record_property):
    """A paused driver relays nothing, like a link that is cut."""
    os.kill(system.process.pid, signal.SIGSTOP)
    cut_ns = time.monotonic_ns()
    try:
        time.sleep((LINK_MS + BOUND_MS) / 1000.0 + 1.5)
        moved_ms = [(arm.motions(after_ns=cut_ns)[-1] - cut_ns) / 1e6 for arm in system.arms]
    finally:
        os.kill(system.process.pid, signal.SIGCONT)
    record_property("moved_ms", moved_ms)
    assert 0.3 * LINK_MS < min(moved_ms) <= max(moved_ms) < LINK_MS + BOUND_MS
    back_ns = time.monotonic_ns()
    wait_for(
        lambda: all(arm.motions(after_ns=back_ns) for arm in system.arms),
        timeout_s=60.0,
        what="the arms to move again without an acknowledgement",
    )


def test_stop_that_was_pressed_without_the_relay_counts_when_it_is_back(system):
    os.kill(system.process.pid, signal.SIGSTOP)
    time.sleep((LINK_MS + BOUND_MS) / 1000.0)
    result = system.press("dovetail stop")  # the arms stand already
    os.kill(system.process.pid, signal.SIGCONT)
    assert result.worst_ms == 0.0, result
    with system.stop() as stop:
        pressed = stop.last_press("arm-0")
        for arm in ("arm-0", "arm-1"):
            wait_for(lambda arm=arm: stop.confirmed_ns(arm, after=pressed), timeout_s=30.0, what=f"{arm} confirms")
    time.sleep(1.0)
    assert not any(arm.motions(after_ns=result.pressed_ns) for arm in system.arms)
    system.acknowledge()
