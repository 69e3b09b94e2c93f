"""Cut the power at any moment of a store's operations; a script for `run_with_shim`.

    python -m support.faults.power_cuts STORE NUM_EXAMPLES NUM_FAILED_CALLS

Records the operations, some of them with a call that fails once, and opens the store on crash images. Prints as JSON how
many.
"""

from __future__ import annotations

import errno
import itertools
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.core.errors import StoreError
from dovetail.replay import _writer_files
from support.faults.failing_calls import finish
from support.faults.images import Change, Disk, Fate, read_changes
from support.faults.shim import ALL, Mode, Shim, memory_folder
from support.faults.stores import STORES, StoreUnderTest

_TRY, _DONE = "try ", "done "


def record(cls: type[StoreUnderTest], shim: Shim, folder: Path, *, failing: int) -> list[Change]:
    """Run the operations twice, with a new object in between. The n-th call fails if `failing` is n."""
    folder.mkdir()
    with tempfile.TemporaryFile() as log:
        shim.record(log.fileno())
        for prefix in ("a", "b"):
            store = cls(folder)
            if prefix == "b" and failing:
                shim.arm(failing, error=errno.EIO, mode=Mode.ONCE, kinds=ALL)
            for operation in store.operations(prefix):
                shim.mark(_TRY + operation)
                try:
                    store.run(operation)
                except StoreError:
                    store.run(operation)
                shim.mark(_DONE + operation)
            with suppress(StoreError):
                store.close()
            shim.disarm()
        shim.record(-1)
        log.seek(0)
        changes = read_changes(log.read(), str(folder.resolve()))
    assert_complete(changes, folder)
    return changes


def assert_complete(changes: list[Change], folder: Path) -> None:
    """Nothing bypassed the record: applying all of it gives the folder."""
    disk, copy = Disk(), folder.with_name("complete")
    for change in changes:
        disk.apply(change)
    disk.write_image(copy, [Fate.KEPT] * disk.num_pending())
    for one, other in ((folder, copy), (copy, folder)):
        for path in one.rglob("*"):
            twin = other / path.relative_to(one)
            assert twin.exists(), twin
            if path.is_file() and path.name != "counters":  # a mapped page is recorded only at marks
                assert path.read_bytes() == twin.read_bytes(), path
    shutil.rmtree(copy)


def acknowledged(changes: list[Change]) -> tuple[list[str], str | None]:
    """The operations that have returned, and the one that has not."""
    done: list[str] = []
    pending = None
    for change in changes:
        if change.kind == "M" and change.a.startswith(_TRY):
            pending = change.a.removeprefix(_TRY)
        elif change.kind == "M":
            done.append(change.a.removeprefix(_DONE))
            pending = None
    return done, pending


def check_image(cls: type[StoreUnderTest], folder: Path, done: list[str], pending: str | None) -> None:
    store = cls(folder)
    if cls.is_rebuilt and store.is_empty:
        done, pending = ["power cut"], None
    finish(store, "d", done, pending)
    store.assert_clean()
    store.close()


def main(store_name: str, num_examples: int, num_failed_calls: int) -> None:
    cls = STORES[store_name]
    _writer_files.boot_id = lambda: _boot[0]
    _boot = ["before the power cut"]
    counts = {"images": 0, "changes": 0}
    with memory_folder() as name:
        root = Path(name)
        shim = Shim(root)
        rng = random.Random(0)
        calls = [0, *(rng.randrange(1, 80) for _ in range(num_failed_calls))]
        records = [record(cls, shim, root / f"record-{number}", failing=n) for number, n in enumerate(calls)]
        counts["changes"] = sum(map(len, records))
        numbers = itertools.count()

        def cut(changes: list[Change], place: int, choose: Callable[[int], list[Fate]]) -> None:
            disk = Disk()
            for change in changes[:place]:
                disk.apply(change)
            image = root / f"image-{next(numbers)}"
            disk.write_image(image, choose(disk.num_pending()))
            counts["images"] += 1
            _boot[0] = f"boot {counts['images']}"
            check_image(cls, image, *acknowledged(changes[:place]))
            shutil.rmtree(image)

        for place in range(0, len(records[0]) + 1, max(1, 4 * len(records[0]) // num_examples)):
            for fate in (Fate.KEPT, Fate.LOST):
                cut(records[0], place, lambda count, fate=fate: [fate] * count)  # type: ignore[misc]

        @settings(
            max_examples=num_examples,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def cut_anywhere(data: st.DataObject) -> None:
            changes = data.draw(st.sampled_from(records))
            place = data.draw(st.integers(0, len(changes)))
            fates = st.sampled_from(list(Fate))
            cut(changes, place, lambda count: data.draw(st.lists(fates, min_size=count, max_size=count)))

        cut_anywhere()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
