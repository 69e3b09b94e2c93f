from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.replay.mapped import MappedReplay, MappedReplayConfig


@pytest.fixture
def open_replay(tmp_path: Path) -> Iterator[Callable[..., MappedReplay]]:
    """Open small replays in new or named folders; they are closed after the test."""
    with contextlib.ExitStack() as stack:

        def open_one(*, keys: tuple[str, ...] | None = None, folder: str = "", **config: Any) -> MappedReplay:
            name = folder or f"replay-{len(list(tmp_path.iterdir()))}"
            config = {"capacity_rows": 1000, **config}
            replay = MappedReplay(MappedReplayConfig(**config), folder=tmp_path / name, keys=keys)
            stack.callback(replay.close)
            replay.open()
            return replay

        yield open_one


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in shared memory if available, for speed."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="replay-test-") as folder:
        yield Path(folder)
