"""Time of one action chunk of pi0 with random weights, next to stock transformers in the same process and through the
inference process; of pi05 and SmolVLA.

On a GPU: full size, bfloat16, three cameras of 224 x 224 pixels (SmolVLA: 512 x 512), 48 prompt tokens (pi05: 200), 10 flow
steps, chunks of 50. On a CPU: tiny models in float32. `python -m dovetail.bench.vla [--quick]` prints the rows as JSON lines
and needs neither the CLI nor Ray. On a GPU, `--only PART...` measures only these parts (`PARTS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dovetail.bench.rows import Row
from dovetail.bench.vla.cpu import network_rows, shared_memory_rows
from dovetail.bench.vla.gpu import PARTS, GpuBench
from dovetail.bench.vla.robots import weight_rows
from dovetail.bench.vla.timing import or_skipped

__all__ = ["bench"]

_SLOW_PARTS = PARTS[5:]  # not with --quick


def bench(*, quick: bool, parts: Sequence[str] = ()) -> Iterator[Row]:
    torch.manual_seed(0)
    if torch.cuda.is_available():
        yield from GpuBench(
            quick=quick, parts=parts or [p for p in PARTS if not (quick and p in _SLOW_PARTS)]
        ).rows()
    else:
        yield from network_rows(num=3 if quick else 20)
        yield from or_skipped("CPU, tiny pi0: shared memory", lambda: shared_memory_rows(num=5 if quick else 50))
    if not parts:
        yield from or_skipped("100 MB of new weights", lambda: weight_rows(seconds=6.0 if quick else 30.0))
