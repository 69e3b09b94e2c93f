"""Damaged and hostile messages to the policy server and to its client, under a memory limit."""

import json
import os
import subprocess
import sys

import pytest

from support import TESTS


@pytest.mark.parametrize(
    ("seconds", "seed"),
    [pytest.param(8, 0, marks=pytest.mark.extended), pytest.param(120, None, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("side", ["server", "client"])
def test_damaged_messages_are_refused_within_256_mb(side, seconds, seed):
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    command = [sys.executable, "-m", "support.fuzz_policy_wire", side, str(seconds), str(seed)]
    result = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=seconds + 60)
    assert result.returncode == 0, f"seed {seed}: {result.stderr[-3000:]}"
    counts = json.loads(result.stdout)
    assert sum(counts.values()) > 20 * seconds and "not printable" not in counts
