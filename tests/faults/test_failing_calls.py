"""The n-th write, fsync, rename, open (of files and folders, also to read), mkdir, unlink, truncate, link or fallocate of a
store fails, for every n.

Nothing acknowledged is lost, a failed call raises a StoreError of one line and changes nothing or everything, and the store
works again, through the same object and through a new one.
"""

from __future__ import annotations

import json

import pytest

from support.faults.shim import run_with_shim

STORES = ("episodes", "spool", "labels", "label queue", "weights", "checkpoints", "replay", "export")
PLANS = ("io-error-once", "disk-full", "disk-dead", "short-write", "short-write-then-full")
# Every so many calls in `make test` and in `make test-all`. A run of the export takes a second.
FEW = {"episodes": 23, "spool": 5, "labels": 9, "label queue": 7, "weights": 19, "checkpoints": 9, "replay": 97}
SOME = {"episodes": 11, "weights": 5, "replay": 23, "export": 61}


def fail_calls(store: str, plan: str, *, first: int = 1, stride: int = 1) -> int:
    """Return the number of runs in which a call failed."""
    module = "support.faults.failing_calls"
    found = json.loads(run_with_shim(module, store, plan, str(first), str(stride), timeout_s=1800))
    assert found["num_failures"] == 0
    return int(found["num_runs"])


@pytest.mark.parametrize("store", FEW)
def test_store_survives_a_failing_call(store: str) -> None:
    assert fail_calls(store, "io-error-once", stride=FEW[store]) > 3


@pytest.mark.extended
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("store", STORES)
def test_store_survives_failing_calls(store: str, plan: str) -> None:
    assert fail_calls(store, plan, first=2, stride=SOME.get(store, 1)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("store", STORES)
def test_store_survives_every_failing_call(store: str, plan: str) -> None:
    assert fail_calls(store, plan) > 5
