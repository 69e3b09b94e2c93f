"""Half an hour of kills, pauses, a slow disk, cut links and STOP presses together: nothing is lost, every STOP arrives.

DOVETAIL_SOAK_MINUTES sets the duration, DOVETAIL_SOAK_JSON the file for the results.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from dovetail.bench.stop._console import Console
from dovetail.config.cluster import ClusterConfig
from dovetail.episodes.log import EpisodeLog
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal
from dovetail.testing.socket_arm_process import ArmProcess
from support.lab import lab_file
from support.namespaces import hosts, needs_namespaces, own_processes
from support.soak import Faults, Presses, SoakWorld, soak_layout

__all__ = ["hosts"]

pytestmark = [pytest.mark.slow, needs_namespaces]

MINUTES = float(os.environ.get("DOVETAIL_SOAK_MINUTES", "30"))
BOUND_MS = 1000.0
# STOP cannot reach an arm whose link is cut: it notices that by itself, and then it has as long as after a press
CUT_BOUND_MS = 1000.0 * ClusterConfig().stop_link_timeout_s + BOUND_MS


def cluster(run, lab, word, inside):
    command = [*inside, sys.executable, "-m", "dovetail.cli", "cluster", word, str(lab)]
    done = subprocess.run(command, capture_output=True, text=True, env=run.environment, timeout=240)
    assert done.returncode == 0, done.stderr


def test_every_stop_arrives_and_nothing_is_lost(hosts, tmp_path, record_property):
    (desk, cell), cable = hosts
    lab = lab_file(tmp_path, desk="10.203.77.1", cell="10.203.77.2")
    inside = {name: ("ip", "netns", "exec", name) for name in (desk, cell)}
    with contextlib.ExitStack() as stack:
        arms = [stack.enter_context(ArmProcess(prefix=inside[name])) for name in (desk, cell)]
        gamepad, pedal = EmulatedGamepad(tmp_path / "gamepad"), EmulatedPedal(tmp_path / "pedal")
        for device in (gamepad, pedal):
            stack.enter_context(device)
        short = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="w", dir="/tmp", ignore_cleanup_errors=True)
        )
        layout = soak_layout(tmp_path, arms, gamepad, pedal)
        run = SoakWorld(tmp_path, Path(short), layout=layout, arms=arms, namespaces=(desk, cell), cable=cable)
        stack.callback(run.close)
        for prefix in (inside[desk], stack.enter_context(own_processes(cell))):
            cluster(run, lab, "join", prefix)
            stack.callback(cluster, run, lab, "leave", prefix)
        run.command_prefix = inside[desk]
        run.start(str(lab), "--console")
        run.wait_until(lambda: all(arm.motions() for arm in arms), what="the arms move")
        console = run.wait_until(lambda: Console.printed_in(run.output()), what="the console is there")
        assert [run.uses_relay(name) for name in ("arm-0", "arm-1")] == [False, True]
        rng = random.Random(0)
        faults = Faults(run, random.Random(1))
        presses = Presses(
            run, rng, console=console, devices={"gamepad": gamepad, "pedal": pedal}, prefix=inside[desk]
        )
        faults.start()
        until_s = time.monotonic() + 60 * MINUTES
        while time.monotonic() < until_s:
            time.sleep(rng.uniform(1.0, 6.0))
            presses.press_once()
        faults.close()
        run.restore_link()
        for arm in arms:
            arm.behave_well()
        run.wait_for_motion()
        num_episodes = run.num_online_episodes()
        run.block_file.write_text("solve")
        end_s = time.monotonic() + 600.0
        while run.driver.poll() is None and time.monotonic() < end_s:
            run.acknowledge()
            time.sleep(2.0)
        run.wait_for_report(within_s=1.0)
        worst = [one.worst_ms for one in presses.pressed]
        in_cuts = [one.worst_ms for one in presses.pressed if one.link_cut]
        results = {
            "minutes": MINUTES,
            "faults": dict(faults.counts),
            "num_presses": len(worst),
            "num_unheard": len(presses.unheard),
            "median_ms": statistics.median(worst),
            "worst_ms": max(worst),
            "num_while_cut": len(in_cuts),
            "worst_while_cut_ms": max(in_cuts, default=0.0),
            "worst_heard_ms": max(one.heard_ms for one in presses.pressed if one.could_be_heard),
            "cuts": [asdict(one) for one in run.cuts],
            "num_over_100_ms": sum(value > 100.0 for value in worst),
            "num_episodes": num_episodes,
            "num_recorded": len(run.recorded),
            "num_in_log": len(EpisodeLog(run.path / "episodes").ids()),
            "restarted": len(run.events("restarted")),
            "violations": [len(arm.violations()) for arm in arms],
            "presses": presses.to_json(),
        }
        target = os.environ.get("DOVETAIL_SOAK_JSON") or tmp_path / "soak.json"
        Path(target).write_text(json.dumps(results, indent=1))
        record_property("soak", {name: value for name, value in results.items() if name != "presses"})
        run.command("episodes", "verify", "r")
        run.check_nothing_lost()
        late = [one for one in presses.pressed if one.worst_ms >= (CUT_BOUND_MS if one.link_cut else BOUND_MS)]
        assert late == []
        assert [cut for cut in run.cuts if cut.moved_ms >= CUT_BOUND_MS] == []
        # a device is unheard only while the role and the control process are dead, paused or starting
        assert presses.lost == []
        assert all(one.listens_again for one in presses.unheard)
        assert sum(results["violations"]) == 0
        assert len(worst) > 2 * MINUTES
