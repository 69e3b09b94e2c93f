"""Truncated, damaged and missing label files, and their repair."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.core.errors import StoreError
from dovetail.labels.store import LabelStore
from dovetail.labels.verify import repair_labels, verify_labels
from support.example_labels import assert_same_labels, labels

NAMES = ("e1", "e2", "e3", "e4")


def fill(folder: Path) -> bytes:
    store = LabelStore(folder)
    for name in NAMES:
        store.add(labels(name, num_steps=1))
    return (folder / "labels.jsonl").read_bytes()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("labels")
    return folder, fill(folder)


def test_truncation_at_every_byte_keeps_committed_labels(filled: tuple[Path, bytes]) -> None:
    """With and without the count of what was committed: with it the loss shows, without it a crash is as likely."""
    folder, data = filled
    path, mark = folder / "labels.jsonl", folder / "committed.json"
    counted = mark.read_bytes()
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    try:
        for cut in range(len(data)):
            path.write_bytes(data[:cut])
            whole = list(NAMES[: sum(end <= cut for end in ends)])  # a newline may be missing
            mark.unlink(missing_ok=True)
            assert LabelStore(folder).ids() == whole
            assert verify_labels(folder) == []
            mark.write_bytes(counted)
            if len(whole) == len(NAMES):
                assert verify_labels(folder) == []
                continue
            with pytest.raises(StoreError, match=r"lost committed lines.* `dovetail episodes verify .* --repair`"):
                LabelStore(folder).ids()
            (finding,) = verify_labels(folder)
            assert finding.problem == f"has lost {len(data) - 1 - cut} bytes at its end"
            if cut % 50 == 0:
                repair_labels(folder)
                assert LabelStore(folder).ids() == whole
                assert verify_labels(folder) == []
    finally:
        path.write_bytes(data)
        mark.write_bytes(counted)


def test_incomplete_last_line_is_not_damage(tmp_path: Path) -> None:
    data = fill(tmp_path)
    path = tmp_path / "labels.jsonl"
    for torn in (b"{", b'{"episode_id": "e5", "lab', b'{"episode_id": "e5"}', b"\0" * 100):
        path.write_bytes(data + torn)
        assert verify_labels(tmp_path) == []
        store = LabelStore(tmp_path)
        assert store.ids() == list(NAMES)
        store.add(labels("e5"))
        assert LabelStore(tmp_path).ids() == [*NAMES, "e5"]
        (tmp_path / "committed.json").unlink()


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@example(0.0, 1)
@example(1 - 1e-9, 0x80)  # the last newline, which then is no text any more
@example(1 - 1e-9, 0x01)
def test_changed_byte_loses_only_its_line(
    tmp_path_factory: pytest.TempPathFactory, place: float, change: int
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    data = bytearray(fill(folder))
    at = int(place * len(data))
    hit = bytes(data[:at]).count(b"\n")
    is_newline = data[at] == ord("\n")
    data[at] ^= change
    check_damage(folder, bytes(data), kept=list(NAMES) if is_newline else [n for n in NAMES if n != NAMES[hit]])


def test_damaged_newline_loses_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = fill(tmp_path_factory.mktemp("labels"))
    for at in [place for place, byte in enumerate(data) if byte == ord("\n")]:
        for change in (0x01, 0x20, 0x80):
            folder = tmp_path_factory.mktemp("labels")
            damaged = bytearray(fill(folder))
            damaged[at] ^= change
            check_damage(folder, bytes(damaged), kept=list(NAMES))


def test_lost_block_is_found(tmp_path: Path) -> None:
    data = fill(tmp_path)
    start = data.index(b'"e2"')
    damaged = data[:start] + bytes(400) + data[start + 400 :]
    assert damaged.count(b"\n") < data.count(b"\n")
    check_damage(tmp_path, damaged, kept=["e1", "e4"])


def check_damage(folder: Path, damaged: bytes, *, kept: list[str]) -> None:
    path = folder / "labels.jsonl"
    early = LabelStore(folder)
    early.ids()  # has read it before it was damaged
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"line \d is damaged. `dovetail episodes verify .* --repair`"):
        LabelStore(folder).current("e1")
    with pytest.raises(StoreError, match="is damaged"):
        LabelStore(folder).add(labels("e9"))
    findings = verify_labels(folder)
    assert findings
    assert all(finding.line and finding.path == path and finding.problem for finding in findings)
    aside = repair_labels(folder)
    assert aside is not None
    assert "damaged" in aside.name
    assert aside.read_bytes() == damaged
    assert verify_labels(folder) == []
    assert repair_labels(folder) is None
    for reader in (LabelStore(folder), early):  # also a reader that had it open
        assert reader.ids() == kept
        for name in kept:
            assert_same_labels(reader.current(name), labels(name, num_steps=1))
    early.add(labels("e9"))
    assert LabelStore(folder).ids() == [*kept, "e9"]


def test_truncated_file_is_found_by_committed_size(tmp_path: Path) -> None:
    data = fill(tmp_path)
    mark = tmp_path / "committed.json"
    counted = mark.read_bytes()
    for at in range(len(counted)):
        mark.write_bytes(counted[:at] + bytes([counted[at] ^ 1]) + counted[at + 1 :])
        assert LabelStore(tmp_path).ids() == list(NAMES)  # the labels themselves are intact
        (finding,) = verify_labels(tmp_path)
        assert finding.path == mark
    assert repair_labels(tmp_path) is None
    assert mark.read_bytes() == counted
    assert (tmp_path / "labels.jsonl").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".tmp", "committed.json", "labels.jsonl"]


def test_missing_file_is_found(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "labels.jsonl").unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"is missing. `dovetail episodes verify"):
            LabelStore(tmp_path).add(labels())
    assert [finding.problem for finding in verify_labels(tmp_path)] == ["is missing"]
    repair_labels(tmp_path)
    assert verify_labels(tmp_path) == []
    LabelStore(tmp_path).add(labels())


def test_empty_folder_has_no_findings(tmp_path: Path) -> None:
    assert verify_labels(tmp_path / "labels") == []
    assert not (tmp_path / "labels").exists()


def test_second_repair_keeps_first_damaged_file(tmp_path: Path) -> None:
    for name in ("labels.damaged-1.jsonl", "labels.damaged-2.jsonl"):
        data = fill(tmp_path)
        (tmp_path / "labels.jsonl").write_bytes(data.replace(b'"e2"', b'"e7"'))
        assert repair_labels(tmp_path) == tmp_path / name
