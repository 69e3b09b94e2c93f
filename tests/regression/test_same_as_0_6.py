"""Inline runs compute exactly what version 0.6 computed: weights, episodes and the numbers of the report.

`tests/fixtures/digests-0.6.json` was written by 0.6 (commit 30ebbbf) with these commands and `support.run_digests`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS
from support.run_digests import run_digests

pytestmark = pytest.mark.slow

EXPECTED = json.loads((TESTS / "fixtures" / "digests-0.6.json").read_text())
RUNS = {
    "peg": (
        "peg-insertion run.demos=3 run.env_steps=150 run.eval_episodes=3 run.untrained_episodes=2 learner.bc_updates=50 "
        "learner.warmup_updates=30 algorithm.actor_q_from_update=100"
    ),
    "hg": (
        "pick-place-hg-dagger run.demos=2 run.env_steps=150 run.eval_episodes=2 run.untrained_episodes=1 "
        "learner.bc_updates=40"
    ),
    "ppo": (
        "push-cube-ppo run.demos=2 run.env_steps=1024 run.eval_episodes=2 run.untrained_episodes=1 learner.bc_updates=40 "
        "algorithm.num_envs=4 algorithm.rollout_steps=64"
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_inline_run_computes_what_0_6_computed(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "run", *RUNS[name].split(), "runtime=inline", "run.seed=7"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--name", name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    computed = run_digests(tmp_path / "runs" / name)
    for what, expected in EXPECTED[name].items():
        found = computed[what]
        if isinstance(expected, dict):  # newer versions report more figures
            found = {key: found.get(key) for key in expected}
        assert found == expected, f"{what} of {name} differ from 0.6"
