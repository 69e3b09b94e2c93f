"""An SO-101 from demonstrations to a trained policy: LeRobot's own code, two emulated buses, and a scripted person who moves
the leader arm by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.emulators.feetech.emulator import FeetechEmulator, FeetechEmulatorConfig
from support import TESTS
from support.so101_person import GOAL, Person

pytestmark = pytest.mark.slow

NUM_DEMOS, NUM_EPISODES = 20, 10
MIN_SUCCESSES = 5  # an untrained policy has 0


def settings(folder: Path, python: str) -> dict:
    lerobot = {
        "python": python,
        "imports": ["dovetail_lerobot_env"],
        "env": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        "retries": 5,
        "timeout_s": 0.9,
    }

    def device(mode: str) -> dict:
        return {"port": str(folder / f"so101-{mode}"), "id": mode, "calibration_dir": str(folder)}

    return {
        "base": "so101",
        "task": {
            "type": "support.reach_pose:ReachPose",
            "prompt": "move the arm to the marked pose",
            "goal": list(GOAL),
            "time_limit_s": 15,
            "home": {
                "parts": {"arm": [0.0, -0.6, 0.6, 0.6, 0.0], "gripper": [0.5]},
                "offsets": {"arm": [0.3, 0.2, 0.2, 0.2, 0.3]},
                "speed": 0.5,
            },
            "ask": "take the leader",
        },
        "robot": {**lerobot, "config": device("follower"), "control_hz": 10},
        "operator": {
            "leader": {"type": "lerobot", **lerobot, "teleoperator": "so101_leader", "config": device("leader")}
        },
        "policy": {"horizon": 8},
        "learner": {"warmup_updates": 4000},
        "run": {"demos": NUM_DEMOS, "seed": 100},
    }


def dovetail(folder: Path, *words: str, timeout_s: float = 900.0) -> str:
    env = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dovetail.cli", *words, "--runs-dir", str(folder / "runs")],
        capture_output=True, text=True, env=env, timeout=timeout_s, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


def test_so101_learns_a_reach_from_its_leader_arm(python, tmp_path):
    (tmp_path / "so101.json").write_text(json.dumps(settings(tmp_path, python)))
    buses = []
    for mode in ("follower", "leader"):
        link, file = str(tmp_path / f"so101-{mode}"), str(tmp_path / f"{mode}.json")
        buses.append(FeetechEmulator(FeetechEmulatorConfig(mode=mode, link=link, calibration_file=file)))
        buses[-1].start()
    person = Person(*buses)
    person.start()
    try:
        dovetail(tmp_path, "collect", "so101.json", "--name", "so")
        person.leaves.set()
        person.join()
        dovetail(tmp_path, "train", "--resume", "so", "--no-eval")
        dovetail(tmp_path, "eval", "so", "task.ask=null", "--episodes", str(NUM_EPISODES), "--seed", "41")
    finally:
        person.leaves.set()
        for bus in buses:
            bus.close()
    assert person.num_demonstrations >= NUM_DEMOS - 2  # some of the last may end as the person leaves
    events = [json.loads(line) for line in (tmp_path / "runs" / "so" / "events.jsonl").read_text().splitlines()]
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    assert evaluation["episodes"] == NUM_EPISODES
    assert evaluation["successes"] >= MIN_SUCCESSES, evaluation
