"""Outlives the driver of a Ray of our own: `python -m dovetail.runtime.ray.cluster.orphan_cleanup FOLDER`.

When its input ends, however the driver did, everything of that Ray has a moment to end by itself: arms are stopped by then.
What is left is ended, and the folder removed. Without it some of Ray's processes would stay for a minute, and the folder for
good. It does not import Ray.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from dovetail.runtime.ray.cluster.process_marks import await_end, end_all

__all__ = ["main"]

_GRACE_S = 8.0


def main(folder: Path) -> None:
    while os.read(0, 1024):
        pass
    if not await_end(folder, seconds=_GRACE_S):
        end_all(folder)
        await_end(folder, seconds=_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
