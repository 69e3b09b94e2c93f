"""A role is killed every 20 s for half an hour: nothing is lost, and no memory leaks.

DOVETAIL_SOAK_MINUTES says how long; what was seen is in `soak.json` beside the run.
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
WARM_S = 60.0  # a process that is younger still grows by what it imports and builds
GROWTH_MB = 48.0  # that a process may gain after that, whatever it learned meanwhile
VICTIMS = ("StoreRole", "LearnerRole", "WeightsRole", "LabelerRole", "RobotRole", *HOST_ROLES)


class Watch:
    """How much memory each process holds for itself, from when it was warm on."""

    def __init__(self):
        self._first, self._born, self.series = {}, {}, defaultdict(list)

    def look(self, one):
        for pid, title in one.alive().items():
            kind = next((role for role in VICTIMS if f"ray::{role}" in title or f".roles {role} " in title), None)
            kind = kind or ("driver" if pid == one.driver.pid else title.split()[0].rpartition("/")[2][:20])
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                held_kb = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
                files = len(os.listdir(f"/proc/{pid}/fd"))
            except (OSError, StopIteration):
                continue
            self.series[(kind, pid)].append((time.monotonic(), held_kb / 1024, files))

    def growth(self):
        """By process: MB and open files gained, over how many seconds."""
        found = {}
        for (kind, pid), seen in self.series.items():
            warm = [one for one in seen if one[0] > seen[0][0] + WARM_S]
            if len(warm) > 1 and warm[-1][0] - warm[0][0] > WARM_S:
                (since_s, first_mb, first_files), (until_s, last_mb, last_files) = warm[0], warm[-1]
                found[f"{kind} {pid}"] = {
                    "mb": round(last_mb - first_mb, 1),
                    "files": last_files - first_files,
                    "seconds": round(until_s - since_s),
                    "at_last_mb": round(last_mb, 1),
                }
        return found


@pytest.mark.slow
def test_random_kills_lose_nothing_and_leak_nothing(tmp_path, record_property):
    rng, killed, watch = random.Random(0), Counter(), Watch()
    with world(tmp_path) as one:
        one.start("cluster.num_robots=2", "cluster.num_labelers=2", "run.checkpoint_every_s=5")
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        began_s, next_s, num_processes = time.monotonic(), time.monotonic(), []
        while time.monotonic() < began_s + 60 * MINUTES:
            assert one.driver.poll() is None, one.ended()
            if time.monotonic() >= next_s:
                next_s += EVERY_S
                role = rng.choice(VICTIMS)
                pids = one.pids(role)
                if pids:
                    os.kill(rng.choice(pids), 9)
                    killed[role] += 1
            watch.look(one)
            num_processes.append(len(one.alive()))
            time.sleep(2.0)
        num_episodes = one.num_online_episodes()
        one.enough()
        one.finished(within_s=600.0)
        one.gone()
        seen = {
            "minutes": MINUTES,
            "killed": dict(killed),
            "restarted": len(one.events("restarted")),
            "episodes": num_episodes,
            "recorded": len(one.recorded),
            "updates": one.events("checkpoint")[-1]["updates"],
            "most_processes": max(num_processes),
            "growth": watch.growth(),
        }
        (tmp_path / "soak.json").write_text(json.dumps(seen, indent=1))
        record_property("soak", seen)
        one.check_nothing_lost()
        one.check_only_forward()
        assert num_episodes > 3 * MINUTES
        for name, grown in seen["growth"].items():
            assert grown["mb"] < GROWTH_MB, name
            assert grown["files"] < 20 or name.startswith("python"), name  # Ray's own keep the logs of all open
        assert max(num_processes[len(num_processes) // 2 :]) <= max(num_processes[: len(num_processes) // 2]) + 2
