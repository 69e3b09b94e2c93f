"""kill -9 at random times: durable data is intact, interrupted episodes are aborted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support import SUPPORT


def kill_writers(folder: Path, num_kills: int) -> dict[str, int]:
    """What was there in the end; the seed is in the message of a failure, though moments do not repeat."""
    command = [
        sys.executable,
        "-m",
        "support.kill_writers",
        str(folder),
        str(num_kills),
        str(random.SystemRandom().getrandbits(32)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=SUPPORT.parent)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_few_kills_lose_nothing(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, 8)["episodes"] > 0


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    found = kill_writers(tmp_path, 200)
    assert found["acknowledged"] > 20
    assert found["aborted"] > 5  # some kills must interrupt an episode
