"""`dovetail bench replay` with TorchRL's `TensorDictReplayBuffer` over `LazyMemmapStorage` beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from dovetail.bench import replay
from dovetail.bench._replay_data import BATCH, CAMERAS, Source
from dovetail.bench.rows import Row
from dovetail.core.errors import UsageError

__all__ = ["bench"]


def bench(*, quick: bool) -> Iterator[Row]:
    yield from replay.bench(quick=quick, make_peer=_make_torchrl)


def _make_torchrl(folder: Path, source: Source) -> Mapping[str, Callable[[], object]]:
    sample = _torchrl(folder, source)

    def with_threads(num_threads: int) -> Callable[[], object]:
        def run() -> object:
            before = torch.get_num_threads()
            torch.set_num_threads(num_threads)
            try:
                return sample()
            finally:
                torch.set_num_threads(before)

        return run

    return {f"TorchRL{name}": with_threads(num_threads) for name, num_threads in replay.THREADS.items()}


def _torchrl(folder: Path, source: Source) -> Callable[[], object]:
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
    except ImportError as error:
        raise UsageError("TorchRL is not installed: pip install -e '.[bench]'") from error

    num_steps = len(source.states) - 1
    storage = LazyMemmapStorage(num_steps, scratch_dir=folder)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    for first in range(0, num_steps, 1000):
        rows = np.arange(first, min(first + 1000, num_steps))
        sides = {
            side: {key: torch.from_numpy(source.images(key, rows + ahead)) for key in CAMERAS}
            | {"state": torch.from_numpy(source.states[rows + ahead])}
            for side, ahead in (("observation", 0), ("next", 1))
        }
        flat = {
            "action": torch.zeros(len(rows), 7),
            "reward": torch.zeros(len(rows)),
            "done": torch.zeros(len(rows)),
        }
        buffer.extend(TensorDict({**sides, **flat}, batch_size=[len(rows)]))
    sample: Callable[[], object] = buffer.sample
    return sample
