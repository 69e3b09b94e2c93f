"""Read damaged samples of one format under a memory limit; a script, because the limit holds for a whole process.

    python -m support.fuzz.run FORMAT NUM_EXAMPLES [SEED]

Prints as JSON how many examples were read, and how many of them were refused.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dovetail.core.errors import DovetailError
from support.faults.shim import memory_folder
from support.fuzz.device_formats import DEVICE_FORMATS
from support.fuzz.formats import FORMATS, Format
from support.fuzz.memory import limit_memory
from support.fuzz.wire_formats import WIRE_FORMATS


def _formats(name: str) -> dict[str, Format]:
    if name in ("published folders", "torch files"):  # their imports take seconds
        from support.fuzz.published_formats import PUBLISHED_FORMATS

        return PUBLISHED_FORMATS
    return FORMATS | WIRE_FORMATS | DEVICE_FORMATS


def main(name: str, num_examples: int, start: int | None) -> None:
    fmt = _formats(name)[name]
    counts = {"examples": 0, "refused": 0}
    profile = settings(
        max_examples=num_examples,
        derandomize=start is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    with memory_folder() as root:
        template, folder = Path(root) / "template", Path(root) / "sample"
        template.mkdir()
        fmt.make(template)
        shutil.copytree(template, folder)
        with suppress(DovetailError):  # no process is live
            fmt.read(folder)  # also imports everything
        gc.collect()
        limit_memory()

        @profile
        @given(st.data())
        def read_damaged(data: st.DataObject) -> None:
            shutil.rmtree(folder)
            shutil.copytree(template, folder)
            fmt.damage(folder, data)
            counts["examples"] += 1
            try:
                fmt.read(folder)
            except DovetailError as error:
                counts["refused"] += 1
                if "\n" in str(error) or len(str(error)) > 3000:
                    raise AssertionError(f"not one short line: {error}") from error

        (read_damaged if start is None else seed(start)(read_damaged))()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
