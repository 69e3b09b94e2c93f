"""A role is killed every 20 s for half an hour: nothing is lost, and no memory leaks.

DOVETAIL_SOAK_MINUTES sets the duration. The results are in `soak.json` next to the run.
"""

import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from support.ray_world import HOST_ROLES, world

MINUTES = float(os.environ.get("DOVETAIL_SOAK_MINUTES", "30"))
EVERY_S = 20.0
WARM_S = 60.0  # a younger process still grows by imports and setup
GROWTH_MB = 48.0  # limit for the growth of a process after WARM_S
KILLED_ROLES = ("StoreRole", "LearnerRole", "WeightsRole", "LabelerRole", "RobotRole", *HOST_ROLES)


class MemoryLog:
    """Private memory and open files of each process over time."""

    def __init__(self):
        self._first, self._born, self.series = {}, {}, defaultdict(list)

    def sample(self, run):
        for pid, title in run.alive().items():
            kind = next(
                (role for role in KILLED_ROLES if f"ray::{role}" in title or f".process_main {role} " in title),
                None,
            )
            kind = kind or ("driver" if pid == run.driver.pid else title.split()[0].rpartition("/")[2][:20])
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                held_kb = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
                files = len(os.listdir(f"/proc/{pid}/fd"))
            except (OSError, StopIteration):
                continue
            self.series[(kind, pid)].append((time.monotonic(), held_kb / 1024, files))

    def growth(self):
        """Growth of each process: MB, open files, and the seconds in between."""
        growth = {}
        for (kind, pid), samples in self.series.items():
            warm = [sample for sample in samples if sample[0] > samples[0][0] + WARM_S]
            if len(warm) > 1 and warm[-1][0] - warm[0][0] > WARM_S:
                (since_s, first_mb, first_files), (until_s, last_mb, last_files) = warm[0], warm[-1]
                growth[f"{kind} {pid}"] = {
                    "mb": round(last_mb - first_mb, 1),
                    "files": last_files - first_files,
                    "seconds": round(until_s - since_s),
                    "at_last_mb": round(last_mb, 1),
                }
        return growth


@pytest.mark.slow
def test_random_kills_lose_nothing_and_leak_nothing(tmp_path, record_property):
    rng, killed, memory_log = random.Random(0), Counter(), MemoryLog()
    with world(tmp_path) as run:
        run.start("cluster.num_robots=2", "cluster.num_labelers=2", "run.checkpoint_every_s=5")
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        began_s, next_s, num_processes = time.monotonic(), time.monotonic(), []
        while time.monotonic() < began_s + 60 * MINUTES:
            assert run.driver.poll() is None, run.wait_for_exit()
            if time.monotonic() >= next_s:
                next_s += EVERY_S
                role = rng.choice(KILLED_ROLES)
                pids = run.pids(role)
                if pids:
                    os.kill(rng.choice(pids), 9)
                    killed[role] += 1
            memory_log.sample(run)
            num_processes.append(len(run.alive()))
            time.sleep(2.0)
        num_episodes = run.num_online_episodes()
        run.let_episodes_succeed()
        run.wait_for_report(within_s=600.0)
        run.wait_for_no_processes()
        results = {
            "minutes": MINUTES,
            "killed": dict(killed),
            "restarted": len(run.events("restarted")),
            "episodes": num_episodes,
            "recorded": len(run.recorded),
            "updates": run.events("checkpoint")[-1]["updates"],
            "most_processes": max(num_processes),
            "growth": memory_log.growth(),
        }
        (tmp_path / "soak.json").write_text(json.dumps(results, indent=1))
        record_property("soak", results)
        run.check_nothing_lost()
        run.check_only_forward()
        assert num_episodes > 3 * MINUTES
        for name, grown in results["growth"].items():
            assert grown["mb"] < GROWTH_MB, name
            assert grown["files"] < 20 or name.startswith("python"), name  # Ray's processes keep all logs open
        assert max(num_processes[len(num_processes) // 2 :]) <= max(num_processes[: len(num_processes) // 2]) + 2
