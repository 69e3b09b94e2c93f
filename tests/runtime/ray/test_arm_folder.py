"""The folder of an arm: in the run's folder, or on its own machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dovetail.core.errors import StoreError
from dovetail.runtime.ray.driver.supervisor import _key
from dovetail.runtime.ray.roles.robot import KEY, Arm


def arm(run: Path, key: str) -> Arm:
    return Arm(name="left", config={}, config_hash="h", run=run, key=key)


def test_folder_is_in_the_visible_run_folder(tmp_path: Path) -> None:
    assert arm(tmp_path, _key(tmp_path / KEY)).folder() == tmp_path / "robots/left"


def test_invisible_run_folder_gives_a_stable_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch")
    key = _key(tmp_path / KEY)
    assert _key(tmp_path / KEY) == key
    away = tmp_path / "not" / tmp_path.name
    folder = arm(away, key).folder()
    assert folder == Path("/scratch") / f"dovetail-{tmp_path.name}-{key}" / "left"
    assert arm(away, _key(tmp_path / KEY)).folder() == folder


def test_folder_with_another_key_is_not_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / KEY).write_bytes(b"another")
    assert not arm(tmp_path, "ours").folder().is_relative_to(tmp_path)


def test_local_folder_is_private_and_refused_if_it_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = arm(Path("/not/here/run"), "k").make_folder()
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dovetail-run-other").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="belongs to another user"):
        arm(Path("/not/here/run"), "other").make_folder()
    assert list((tmp_path / "elsewhere").iterdir()) == []
