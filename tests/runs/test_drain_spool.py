"""Delivery of finished episodes from the spool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.core.types import Episode
from dovetail.episodes.spool import Spool
from dovetail.runs.drain_spool import drain_spool
from support.small_episodes import make_episode, record


def test_episode_in_memory_is_delivered_without_reading_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, episode = Spool(tmp_path), make_episode(num_steps=3)
    record(spool, episode)
    monkeypatch.setattr(spool, "load", _must_not_be_called)
    monkeypatch.setattr(spool, "is_damaged", _must_not_be_called)
    delivered: list[Episode] = []
    drain_spool(
        spool,
        lambda given: delivered.append(given) is None,
        report=_must_not_be_called,
        in_memory=lambda episode_id: episode,
    )
    assert delivered == [episode]
    assert spool.pending() == []


def test_refused_episode_stays_in_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    record(spool, make_episode(num_steps=3))
    drain_spool(spool, lambda given: False, report=_must_not_be_called)
    assert spool.pending() == ["e1"]


def _must_not_be_called(*args: Any, **facts: Any) -> Any:
    raise AssertionError(args)
