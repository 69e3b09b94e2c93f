"""Fixtures: config files in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.sample_plugins import BASE


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a file in the current folder, so that error messages show its bare name."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return name

    return write_file


@pytest.fixture
def base(write: Callable[[str, str], str]) -> str:
    return write("base.yaml", BASE)
