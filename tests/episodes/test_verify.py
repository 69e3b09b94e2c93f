"""Any damage is found, the remains are described, and a repair restores the original or changes nothing."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.disk import dump_json
from dovetail.core.errors import StoreError, UsageError
from dovetail.episodes import verify
from dovetail.episodes.images import ImageCodec
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import Finding, repair, verify_log, verify_spool
from support.small_episodes import assert_same_episode, cut_short, make_episode, record, smooth

IDS = ("b", "a", "c")


def fill(folder: Path) -> None:
    for name, codec in zip(IDS, ("lossless", "h264", "av1"), strict=True):
        log = EpisodeLog(folder, images=ImageCodec(name=codec))  # type: ignore[arg-type]
        log.commit(make_episode(id=name, num_steps=40, pictures=smooth(21, 34, 46)))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "episodes"
    fill(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "episodes"))


def files(folder: Path) -> list[Path]:
    there = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    assert len(there) == 3 * 5 + 1
    return there


def damage(folder: Path) -> list[Finding]:
    return [finding for finding in verify_log(folder) if not finding.is_intact]


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_intact_log_has_no_problems(folder: Path, tmp_path: Path) -> None:
    assert [(finding.episode_id, finding.is_intact) for finding in verify_log(folder)] == [
        (id, True) for id in IDS
    ]
    EpisodeLog(folder).remove("a")
    EpisodeLog(folder).commit(make_episode(id="d"))
    assert [finding.episode_id for finding in verify_log(folder) if finding.is_intact] == ["b", "c", "d"]
    assert damage(folder) == []
    assert list(verify_log(tmp_path / "nowhere")) == []
    assert list(verify_spool(tmp_path / "nowhere")) == []


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_found(pristine: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(pristine)))
    original = path.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    try:
        flip(path, place, data.draw(st.integers(0, 7)))
        check_found(pristine, path)
    finally:
        path.write_bytes(original)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_overwritten_range_is_found(pristine: Path, data: st.DataObject) -> None:
    """Several damaged bytes at once must not crash the verification."""
    path = data.draw(st.sampled_from(files(pristine)))
    original = path.read_bytes()
    damaged = bytearray(original)
    for place in data.draw(st.lists(st.integers(0, len(original) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    if damaged != original:
        try:
            path.write_bytes(damaged)
            check_found(pristine, path)
        finally:
            path.write_bytes(original)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_truncation_is_found(pristine: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(pristine)))
    original = path.read_bytes()
    try:
        os.truncate(path, data.draw(st.integers(0, len(original) - 1)))
        check_found(pristine, path)
    finally:
        path.write_bytes(original)


def check_found(folder: Path, path: Path) -> None:
    """Of this file, and of no other; and a repair, where one is promised, gives back what there was."""
    (finding,) = damage(folder)
    assert finding.path == path
    assert finding.episode_id == ("" if path.name == ".order" else path.parent.name)
    assert finding.problem
    assert finding.recoverable
    assert "\n" not in finding.problem + finding.recoverable
    if finding.repairable:
        repair(folder, finding)
        assert damage(folder) == []
    else:
        assert path.name not in ("manifest.json", ".order")
        before = path.read_bytes()
        with pytest.raises(UsageError, match="cannot repair"):
            repair(folder, finding)
        assert path.read_bytes() == before


def test_any_flipped_byte_in_order_is_found_and_repaired(folder: Path) -> None:
    path = folder / ".order"
    original = path.read_bytes()
    for place, bit in itertools.product(range(len(original)), (0, 5)):
        flip(path, place, bit)
        (finding,) = damage(folder)
        assert finding.path == path
        assert EpisodeLog(folder).ids()[0] in IDS  # what is left can be read meanwhile
        repair(folder, finding)
        assert path.read_bytes() == original


def test_missing_and_unexpected_files_are_found(folder: Path) -> None:
    for path in files(folder):
        data = path.read_bytes()
        path.unlink()
        (finding,) = damage(folder)
        assert (finding.path, finding.problem) == (path, "is missing")
        assert finding.repairable == (path.name in ("manifest.json", ".order"))
        path.write_bytes(data)
    for stray in (folder / "stray", folder / "a" / "stray", folder / ".stray", folder / "a" / ".stray"):
        stray.touch()
        (finding,) = damage(folder)
        assert finding.path == stray
        assert "is not part of the" in finding.problem
        stray.unlink()
    (folder / "lost+found").mkdir()
    (finding,) = damage(folder)
    assert finding.path == folder / "lost+found"
    assert EpisodeLog(folder).ids() == list(IDS)
    (folder / "lost+found").rmdir()
    shutil.rmtree(folder / "a")
    (finding,) = damage(folder)
    assert (finding.episode_id, finding.path, finding.repairable) == ("a", folder / "a", True)
    assert "is missing" in finding.problem
    repair(folder, finding)  # there is no copy: it is removed from the list
    assert not damage(folder)
    assert EpisodeLog(folder).ids() == [name for name in IDS if name != "a"]


def test_manifest_is_rebuilt_byte_for_byte(folder: Path) -> None:
    for name in IDS:
        path = folder / name / "manifest.json"
        original = path.read_bytes()
        flip(path, len(original) // 2)
        (finding,) = damage(folder)
        assert finding.recoverable == "everything: it can be rebuilt from steps.parquet"
        repair(folder, finding)
        assert path.read_bytes() == original
    assert sorted(path.name for path in (folder / "a").iterdir()) == sorted(
        ["manifest.json", "steps.parquet", "last.parquet", "frames-camera%2Fwrist.mkv", "frames-depth.mkv"]
    )


def test_rebuilt_manifest_hides_no_other_damage(folder: Path) -> None:
    flip(folder / "a" / "manifest.json", 100)
    flip(folder / "a" / "frames-depth.mkv", 2000)
    first, second = damage(folder)
    assert (first.path, first.repairable) == (folder / "a" / "manifest.json", True)
    assert second.path == folder / "a" / "frames-depth.mkv"
    repair(folder, first)
    assert damage(folder) == [second]


def test_manifest_with_damaged_copy_cannot_be_rebuilt(folder: Path) -> None:
    flip(folder / "a" / "manifest.json", 100)
    path = folder / "a" / "steps.parquet"
    original = path.read_bytes()
    for place in np.random.default_rng(0).integers(4, len(original), 40):
        flip(path, int(place))
        (finding,) = damage(folder)
        assert finding.path == folder / "a" / "manifest.json"
        if finding.repairable:  # the byte was of no value: every column has proved to be as it was
            kept = finding.path.read_bytes()
            repair(folder, finding)
            assert damage(folder) == []
            finding.path.write_bytes(kept)
        else:
            assert "could be rebuilt from steps.parquet, but" in finding.recoverable
            assert "\n" not in finding.recoverable
        path.write_bytes(original)


def test_lost_frames_of_lossless_video_are_named(folder: Path) -> None:
    """Each frame stands by itself: one flipped byte costs one frame, and truncation what is behind it."""
    path = folder / "b" / "frames-camera%2Fwrist.mkv"
    original = path.read_bytes()
    flip(path, len(original) // 2)
    (finding,) = damage(folder)
    assert finding.recoverable.startswith("camera 'camera/wrist' has lost frames 1")
    assert finding.recoverable.endswith(" of 21; the numbers are intact")
    assert "," not in finding.recoverable.partition(";")[0]
    path.write_bytes(original[: len(original) // 2])
    (finding,) = damage(folder)
    assert finding.problem == f"has {len(original) // 2} bytes, expected {len(original)}"
    assert finding.recoverable.startswith("camera 'camera/wrist' is lost from frame 1")
    path.write_bytes(b"")
    (finding,) = damage(folder)
    assert finding.recoverable == "camera 'camera/wrist' is lost; the numbers are intact"


@pytest.mark.parametrize("name", ["a", "c"])
def test_lost_frames_of_lossy_video_are_named(folder: Path, name: str) -> None:
    """At most ten frames depend on each other, wherever the damage is; a frame that is reported as good is what
    was there before."""
    path = folder / name / "frames-camera%2Fwrist.mkv"
    camera = json.loads((folder / name / "manifest.json").read_text())["cameras"]["camera/wrist"]
    original = path.read_bytes()
    whole = verify._damage._good_frames(original, camera)
    assert whole == set(range(21))
    counts = []
    with av.open(io.BytesIO(original)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    places = [original.index(packet) + byte for packet in packets for byte in range(0, len(packet), 7)]
    for place in np.random.default_rng(1).choice(places, 40, replace=False):
        flip(path, int(place), 3)
        counts.append(len(verify._damage._good_frames(path.read_bytes(), camera)))
        path.write_bytes(original)
    assert min(counts) >= 11
    assert min(counts) < 21


def test_intact_columns_are_named(folder: Path) -> None:
    path = folder / "a" / "steps.parquet"
    original = path.read_bytes()
    path.write_bytes(b"")
    (finding,) = damage(folder)
    assert finding.recoverable == "the steps are lost; the images are intact"
    path.write_bytes(original)
    flip(path, 200)
    (finding,) = damage(folder)
    assert finding.recoverable.startswith("of the steps, lost: ")
    lost, whole = (
        {name.strip() for name in part.split(",")}
        for part in finding.recoverable.removeprefix("of the steps, lost: ").split(";")[:2]
    )
    assert len(lost) == 1  # a byte of data costs its column
    assert len(whole) > 8
    (folder / "a" / "last.parquet").unlink()
    flip(folder / "a" / "frames-depth.mkv", 3000)
    description = {finding.path.name: finding.recoverable for finding in damage(folder) if finding.path}
    assert description["last.parquet"] == "the last observation is lost; the images are damaged too"
    assert description["frames-depth.mkv"].endswith("of the numbers, intact: -")


def test_file_with_damaged_padding_is_rebuilt(folder: Path) -> None:
    """Found by flipping every byte at the start and the end, where formats keep their names and indices."""
    repaired = 0
    for name in ("frames-depth.mkv", "last.parquet"):
        path = folder / "b" / name
        original = path.read_bytes()
        for place in (*range(0, 300, 7), *range(len(original) - 300, len(original), 7)):
            flip(path, place)
            (finding,) = damage(folder)
            if finding.repairable:
                repair(folder, finding)
                assert path.read_bytes() == original
                repaired += 1
            path.write_bytes(original)
    assert repaired


def test_repair_with_outdated_finding_changes_nothing(folder: Path) -> None:
    path = folder / "a" / "manifest.json"
    original = path.read_bytes()
    flip(path, 50)
    (finding,) = damage(folder)
    flip(folder / "a" / "steps.parquet", 200)  # meanwhile
    with pytest.raises(StoreError, match=r"steps\.parquet is damaged"):
        repair(folder, finding)
    flip(folder / "a" / "steps.parquet", 200)
    repair(folder, finding)
    assert path.read_bytes() == original
    flip(folder / "a" / "steps.parquet", 40)  # undetectable, so an intact file is left alone
    repair(folder, finding)
    assert path.read_bytes() == original


def test_verify_tolerates_concurrent_commits_and_removals(folder: Path) -> None:
    """Concurrent commits and removals are not damage."""
    found = []
    for count, finding in enumerate(verify_log(folder)):
        found.append(finding)
        if count == 0:
            EpisodeLog(folder).remove("a")
            EpisodeLog(folder).commit(make_episode(id="d"))
    assert [(finding.episode_id, finding.is_intact) for finding in found] == [("b", True), ("c", True)]


def test_order_is_checked_again_under_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A concurrent commit is between the rename and the line in `.order`."""
    read, stale = verify._order.read, folder / ".order"
    whole = stale.read_bytes()
    stale.write_bytes(whole.splitlines(keepends=True)[0])
    looks = []

    def late(where: Path) -> object:
        looks.append(where)
        order = read(where)
        stale.write_bytes(whole)
        return order

    monkeypatch.setattr(verify._order, "read", late)
    assert list(verify._check_order(folder)) == []
    assert len(looks) == 2


def test_other_schemas_and_renamed_folders_are_found(folder: Path) -> None:
    (folder / "a").rename(folder / "z")
    description = {finding.episode_id: finding.problem for finding in damage(folder)}
    assert description["z"] == "contains episode a: the folder was renamed"
    assert "is missing" in description["a"]
    (folder / "z").rename(folder / "a")
    (folder / "old").mkdir()
    (folder / "old" / "manifest.json").write_bytes(dump_json({"schema": 1, "id": "old"}, indent=1))
    problems = [finding.problem for finding in damage(folder) if finding.episode_id == "old"]
    assert problems == ["was written by dovetail 0.1 (schema 1). Read it with that version."]
    with pytest.raises(StoreError, match=r"written by dovetail 0\.1 \(schema 1\)"):
        EpisodeLog(folder).load("old")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    record(Spool(tmp_path / "spool"), make_episode(num_steps=6, cuts=(2, 4)))
    return tmp_path / "spool"


def only(folder: Path) -> Finding:
    (finding,) = verify_spool(folder)
    return finding


def test_intact_spool_has_no_problems(spool: Path) -> None:
    assert only(spool) == Finding(episode_id="e1")
    recorder = Spool(spool)
    record(recorder, make_episode(id="now"), end=False)
    assert [finding.is_intact for finding in verify_spool(spool)] == [True, True]  # being recorded
    recorder.close()
    problems = {finding.episode_id: finding.problem for finding in verify_spool(spool)}
    assert problems == {"e1": "", "now": "was interrupted: it has no end"}


@pytest.mark.parametrize("lost", [1, 10, 23, 24, 100, 1000])
def test_incomplete_record_is_removed_by_repair(spool: Path, lost: int) -> None:
    path = spool / "e1.journal"
    os.truncate(path, path.stat().st_size - lost)
    before = Spool(spool).load("e1")
    finding = only(spool)
    assert finding.problem.startswith("ends in an incomplete record")
    assert finding.repairable
    repair(spool, finding)
    assert only(spool).problem == "was interrupted: it has no end"
    repaired = Spool(spool).load("e1")
    assert before is not None
    assert repaired is not None
    assert_same_episode(before, repaired)


def test_damaged_record_is_found_and_later_ones_counted(spool: Path) -> None:
    path = spool / "e1.journal"
    original = path.read_bytes()
    middle = original.index(b"dvtJ", original.index(b"dvtJ", 30) + 30)  # the second segment
    for place in (middle, middle + 5, middle + 20, middle + 500):
        flip(path, place)
        finding = only(spool)
        assert finding.problem.startswith("is damaged after step 2")
        assert "with 2 intact records" in finding.problem
        assert finding.recoverable == "its first 2 steps, as an aborted episode"
        assert not finding.repairable
        loaded = Spool(spool).load("e1")
        assert loaded is not None
        assert_same_episode(loaded, cut_short(make_episode(num_steps=6, cuts=(2, 4)), 1))
        path.write_bytes(original)
    flip(path, 30)
    assert "4 of its records are intact" in only(spool).recoverable
    path.write_bytes(original + b"more")
    assert only(spool).problem == "has 4 bytes after its end"


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7), cut=st.booleans())
def test_any_damage_in_a_spool_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int, cut: bool
) -> None:
    spool = tmp_path_factory.mktemp("spool")
    record(Spool(spool), make_episode(num_steps=3, cuts=(1,)))
    path = spool / "e1.journal"
    place %= path.stat().st_size
    if cut:
        os.truncate(path, place)
    else:
        flip(path, place, bit)
    finding = only(spool)
    assert finding.path == path
    assert finding.problem
    assert finding.recoverable


def test_unexpected_files_in_spool_are_found(spool: Path) -> None:
    (spool / "notes.txt").touch()
    assert [finding.problem for finding in verify_spool(spool)] == ["", "is not part of the spool"]
