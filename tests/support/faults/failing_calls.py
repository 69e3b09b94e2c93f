"""Fail the n-th call of a store's operations, for every n; a script for `run_with_shim`.

    python -m support.faults.failing_calls STORE PLAN FIRST STRIDE

Starts with an empty folder, then with a store that has content. Prints as JSON how many runs had a failed call, and how
many of them failed the checks.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import StoreError
from support.faults.shim import ALL, SPACE, WRITE, Mode, Shim, memory_folder
from support.faults.stores import STORES, StoreUnderTest, open_descriptors

__all__ = ["PLANS", "finish"]

_MAX_CALLS = 20_000
_MAX_REPORTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    mode: Mode
    error: int
    kinds: int
    reopens: bool  # the next operations use a new object, as after a crash of the process


PLANS = {
    "io-error-once": Plan(mode=Mode.ONCE, error=errno.EIO, kinds=ALL, reopens=False),
    "disk-full": Plan(mode=Mode.FROM_THEN_ON, error=errno.ENOSPC, kinds=SPACE, reopens=False),
    "disk-dead": Plan(mode=Mode.FROM_THEN_ON, error=errno.EIO, kinds=ALL, reopens=True),
    "short-write": Plan(mode=Mode.SHORT, error=0, kinds=WRITE, reopens=False),
    "short-write-then-full": Plan(mode=Mode.SHORT_THEN_FAIL, error=errno.ENOSPC, kinds=WRITE, reopens=True),
}


def one_failure(
    cls: type[StoreUnderTest], shim: Shim, folder: Path, plan: Plan, n: int, before: list[str]
) -> bool:
    """Fail the n-th call; return False if there are fewer calls."""
    store = cls(folder)
    done, pending = list(before), None
    operations = store.operations("b")
    shim.arm(n, error=plan.error, mode=plan.mode, kinds=plan.kinds)
    try:
        for operation in operations:
            if not _succeeds(store, operation) and not _succeeds(store, operation):
                assert plan.mode in (Mode.FROM_THEN_ON, Mode.SHORT_THEN_FAIL), "a repeated call failed"
                pending = operation
                break
            done.append(operation)
        if pending is not None and plan.reopens:
            with suppress(StoreError):
                store.close()
    finally:
        num_injected = shim.disarm()
    if pending is None or not plan.reopens:
        done = store.check(done, pending)
        for operation in operations[len(done) - len(before) :]:
            store.run(operation)
            done.append(operation)
        done = store.check(done)
        store.close()
        pending = None
    del store  # readers close their files with the object
    left_open = open_descriptors(folder)
    assert left_open == [], left_open
    store = cls(folder)
    if (
        cls.is_rebuilt and store.is_empty
    ):  # the failure interrupted a publication; a run fills it again from its log
        done, pending = ["power cut"], None
    done = finish(store, "c", done, pending)
    store.assert_clean()
    store.close()
    return num_injected > 0


def finish(store: StoreUnderTest, prefix: str, done: list[str], pending: str | None) -> list[str]:
    """Check a store after a failure, then run all operations and check it again."""
    before, done = done, store.check(done, pending)
    operations = store.operations(prefix)
    for operation in operations:
        store.run(operation)
    try:
        return store.check([*done, *operations])
    except AssertionError:
        if pending is None or not store.finishes_later:
            raise
        return store.check([*before, pending, *operations])


def _succeeds(store: StoreUnderTest, operation: str) -> bool:
    try:
        store.run(operation)
    except StoreError as error:
        if "\n" in str(error):
            raise AssertionError("the message has several lines") from error
        return False
    return True


def main(store_name: str, plan_name: str, first: int, stride: int) -> None:
    cls, plan = STORES[store_name], PLANS[plan_name]
    ignored: list[Any] = []
    sys.unraisablehook = ignored.append
    with memory_folder() as name:
        root = Path(name)
        shim = Shim(root)
        num_runs = num_failures = 0
        for before in ([], cls(root / "unused").operations("a")):
            template = root / f"after-{len(before)}"
            template.mkdir()
            store = cls(template)
            for operation in before:
                store.run(operation)
            store.close()
            for n in range(first, _MAX_CALLS, stride):
                folder = root / f"n{n}"
                shutil.copytree(template, folder)
                try:
                    if not one_failure(cls, shim, folder, plan, n, before):
                        break
                    num_runs += 1
                    assert not ignored, f"an error was ignored in a destructor: {ignored[0]}"
                except BaseException:
                    shim.disarm()
                    ignored.clear()
                    num_failures += 1
                    text = traceback.format_exc()[-3000:]
                    sys.stderr.write(f"---- {store_name} after {len(before)}, {plan_name}, n = {n}\n{text}\n")
                shutil.rmtree(folder)
                if num_failures >= _MAX_REPORTS:
                    break
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps({"num_runs": num_runs, "num_failures": num_failures}) + "\n")
    sys.exit(bool(num_failures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
