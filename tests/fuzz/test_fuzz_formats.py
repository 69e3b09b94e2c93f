"""Damaged and hostile files, messages and shared memory, read with 256 MB more memory than before.

Reading them raises a DovetailError of one line, or returns what is intact. It never hangs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from support import TESTS

FORMATS = (
    "episodes",
    "spool",
    "labels",
    "label queue",
    "weights",
    "checkpoints",
    "replay",
    "run",
    "lerobot",
    "chat answers",
    "classifiers",
    "channels",
    "shared memory",
    "policy files",
    "run records",
    "published folders",
    "openpi messages",
    "robot messages",
    "drive messages",
    "franka replies",
    "lerobot bridge",
    "ros messages",
    "status packets",
    "camera streams",
    "input events",
    "torch files",
)


def fuzz(name: str, num_examples: int, *, seed: int | None = None, timeout_s: float) -> None:
    command = [
        sys.executable,
        "-m",
        "support.fuzz.run",
        name,
        str(num_examples),
        *([] if seed is None else [str(seed)]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=TESTS)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-6000:]}"
    assert json.loads(done.stdout.splitlines()[-1])["examples"] >= num_examples // 2


@pytest.mark.parametrize("name", ["spool", "labels", "franka replies", "lerobot bridge", "drive messages"])
def test_damaged_data_is_refused_or_read(name: str) -> None:
    fuzz(name, 40, timeout_s=120)


@pytest.mark.extended
@pytest.mark.parametrize("name", FORMATS)
def test_hundreds_of_damaged_samples_are_refused_or_read(name: str) -> None:
    fuzz(name, 60 if name == "lerobot" else 200, timeout_s=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_thousands_of_damaged_samples_are_refused_or_read(name: str) -> None:
    """Other samples in each run. A failure prints its seed, and the seed repeats it."""
    fuzz(name, 400 if name == "lerobot" else 4000, seed=random.SystemRandom().getrandbits(32), timeout_s=1800)
