"""The replay in memory-mapped files: the writer and a reader of one folder, for one process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.types import Array, View, Window
from dovetail.replay.reader import MappedReplayReader
from dovetail.replay.writer import MappedReplayWriter

__all__ = ["DEFAULT_IMAGE_SIZE", "MappedReplay", "MappedReplayConfig"]

DEFAULT_IMAGE_SIZE = 128  # three cameras of 640x480: 72,000 steps in 8 GB


class MappedReplayConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("capacity_gb",)
    BEFORE: ClassVar[Mapping[str, str]] = {"image_size": "full", "image_scaling": "averaged"}

    capacity_gb: float = Field(default=8.0, gt=0.0)
    """Maximum size in GB. When it is full, the oldest episodes are evicted. Disk space is used only as needed."""
    capacity_rows: int | None = Field(default=None, ge=2)
    """Maximum number of rows, in addition to capacity_gb. An episode of T steps takes T + 1 rows."""
    image_size: Annotated[int, Field(ge=16, le=4096)] | Literal["auto", "full"] = "auto"
    """Longer side, in pixels, of the images that the policy looks at and the replay stores. Larger ones are scaled down
    without distortion; the log keeps the full size. Auto: 128, or what the policy asks for (pi0: 224, smolvla: 512).
    Full: never."""
    image_scaling: Literal["auto", "averaged", "interpolated"] = "auto"
    """How larger color images are scaled down: averaged (as PIL and openpi's client do it), or interpolated between four
    pixels (as LeRobot does it). Auto: as the checkpoint of `pi0`, `pi05` or `smolvla` was trained; averaged for others."""
    keep_demos: bool = True
    """Never evict demonstrations."""
    num_threads: int = Field(default=2, ge=1, le=64)
    """Number of threads that copy images into a batch."""

    @property
    def max_side(self) -> int | None:
        """The image size as a number; None: unlimited."""
        if self.image_size == "auto":
            return DEFAULT_IMAGE_SIZE
        return None if self.image_size == "full" else self.image_size


class MappedReplay(MappedReplayWriter):
    """Implements Replay. Batches depend only on the episodes, their order and the random generator.

    `keys` are the observations to store; by default all that are not images.
    """

    Config: ClassVar[type[MappedReplayConfig]] = MappedReplayConfig

    def __init__(
        self, config: MappedReplayConfig | None = None, *, folder: Path, keys: Iterable[str] | None = None
    ) -> None:
        config = config or MappedReplayConfig()
        super().__init__(
            folder,
            keys=None if keys is None else tuple(keys),
            capacity_bytes=int(config.capacity_gb * 1e9),
            capacity_rows=config.capacity_rows,
            keep_demos=config.keep_demos,
            image_size=config.max_side,
            image_scaling="averaged" if config.image_scaling == "auto" else config.image_scaling,
        )
        self._reader = MappedReplayReader(folder, num_threads=config.num_threads)

    def size(self, view: View) -> int:
        return self._reader.size(view)

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window | None = None
    ) -> None:
        self._reader.sample(into, view=view, rng=rng, window=window or Window())
