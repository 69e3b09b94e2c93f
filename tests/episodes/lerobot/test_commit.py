"""The order in which an export makes its files durable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.episodes.lerobot import _commit


def test_staged_files_can_be_found_again_before_the_first_one_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a power cut may keep a moved file and lose the folder of all others."""
    calls: list[tuple[str, Path]] = []
    fsync, replace = _commit.fsync_folder, os.replace

    def note_fsync(path: Path) -> None:
        calls.append(("fsync", path))
        fsync(path)

    def note_replace(source: Path, target: Path) -> None:
        calls.append(("replace", target))
        replace(source, target)

    monkeypatch.setattr(_commit, "fsync_folder", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    out = tmp_path / "dataset"
    with _commit.exclusive(out) as staging:
        for name in ("data/file.parquet", "meta/info.json"):
            staging.path(name).write_bytes(b"x")
        staging.commit()
    first_move = next(i for i, (kind, _) in enumerate(calls) if kind == "replace")
    durable = [path for kind, path in calls[:first_move] if kind == "fsync"]
    assert [path for path in durable if path in (out / ".export", out)][:2] == [out / ".export", out]
    assert {out / "data", out / "meta"} <= set(durable)  # folders of moved files, with their names
    assert (out / "meta" / "info.json").read_bytes() == b"x"
