"""The power is cut at any moment: unsynced writes and names are lost, kept, torn or reordered.

What a store had acknowledged is there and intact; the rest is there completely or not at all; the store works again. The
replay, which is never synced while it is open, starts empty unless it was closed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.faults.images import Change, Disk, Fate
from support.faults.shim import run_with_shim

STORES = ("episodes", "spool", "labels", "label queue", "weights", "checkpoints", "replay", "export")


def cut_power(store: str, *, num_examples: int, num_failed_calls: int) -> int:
    """Return the number of crash images."""
    module = "support.faults.power_cuts"
    found = json.loads(run_with_shim(module, store, str(num_examples), str(num_failed_calls), timeout_s=1800))
    return int(found["images"])


@pytest.mark.parametrize("store", ["spool", "labels", "checkpoints"])
def test_acknowledged_data_survives_a_power_cut(store: str) -> None:
    assert cut_power(store, num_examples=40, num_failed_calls=1) >= 40


@pytest.mark.extended
@pytest.mark.parametrize("store", STORES)
def test_acknowledged_data_survives_power_cuts_after_failed_calls(store: str) -> None:
    num_examples = 12 if store == "export" else 120
    assert cut_power(store, num_examples=num_examples, num_failed_calls=3) >= num_examples


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_acknowledged_data_survives_thousands_of_power_cuts(store: str) -> None:
    assert cut_power(store, num_examples=200 if store == "export" else 2000, num_failed_calls=40) >= 200


def change(kind: str, *, inode: int = 0, offset: int = 0, a: str = "", b: str = "", data: bytes = b"") -> Change:
    return Change(kind=kind, inode=inode, offset=offset, a=a, b=b, data=data)


def image(tmp_path: Path, changes: list[Change], fates: list[Fate]) -> dict[str, bytes]:
    disk = Disk()
    for one in changes:
        disk.apply(one)
    assert disk.num_pending() == len(fates)
    disk.write_image(tmp_path / "image", fates)
    return {path.name: path.read_bytes() for path in (tmp_path / "image").rglob("*") if path.is_file()}


def test_image_has_synced_data_and_loses_a_name_without_fsync_of_its_folder(tmp_path: Path) -> None:
    write = [change("C", inode=1, a="f"), change("W", inode=1, data=b"abc"), change("S", inode=1)]
    (tmp_path / "lost").mkdir()
    assert image(tmp_path / "lost", write, [Fate.LOST]) == {}
    synced = [*write, change("S", inode=99)]  # of the folder
    later = change("W", inode=1, offset=3, data=b"def")
    assert image(tmp_path, [*synced, later], [Fate.LOST]) == {"f": b"abc"}


def test_image_may_have_a_hole_or_half_a_write(tmp_path: Path) -> None:
    start = [change("C", inode=1, a="f"), change("S", inode=99)]
    data = bytes(range(1, 256)) * 5  # 1275 bytes: three sectors
    (tmp_path / "zero").mkdir()
    assert image(tmp_path / "zero", [*start, change("W", inode=1, data=data)], [Fate.ZEROED]) == {"f": bytes(1275)}
    found = image(tmp_path, [*start, change("W", inode=1, data=data)], [Fate.FIRST_SECTORS])
    assert found == {"f": data[:1024]}


def test_rename_is_applied_completely_or_not_at_all(tmp_path: Path) -> None:
    start = [
        change("C", inode=1, a="old"),
        change("W", inode=1, data=b"x"),
        change("S", inode=1),
        change("S", inode=9),
    ]
    renamed = [*start, change("R", a="old", b="new")]
    for fate, expected in ((Fate.KEPT, {"new": b"x"}), (Fate.LOST, {"old": b"x"})):
        (tmp_path / fate.name).mkdir()
        assert image(tmp_path / fate.name, renamed, [fate]) == expected
