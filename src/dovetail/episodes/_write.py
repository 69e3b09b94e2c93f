"""Write an episode's folder: frames, numbers, and last the manifest with the checksums of all files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import av
import numpy as np

from dovetail.core.disk import dump_json, fsync_folder, sha256, sha256_file, write_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes._columns import FRAME, OBSERVATION, Columns, checksum
from dovetail.episodes._frames import ColorConverter, DistinctFrames, Layout, decode, encode
from dovetail.episodes._manifest import LAST, MANIFEST, STEPS, pack_manifest, with_steps
from dovetail.episodes._tables import to_parquet
from dovetail.episodes.images import ImageCodec

__all__ = ["write_episode"]


def write_episode(folder: Path, description: Mapping[str, Any], columns: Columns, *, codec: ImageCodec) -> None:
    """Write the files durably into a folder that has no readers yet.

    `description` is the manifest without the fields that say how the episode is stored.
    """
    files: dict[str, dict[str, Any]] = {}
    cameras: dict[str, dict[str, Any]] = {}
    steps, last = dict(columns.steps), {"time_ns": np.array([columns.last_time_ns], np.int64)}
    last |= {OBSERVATION + key: value[None] for key, value in columns.last.items()}
    for key in columns.images:
        name = f"frames-{quote(key, safe='')}.mkv"  # keys may contain slashes
        try:
            camera, index = _write_camera(folder / name, columns, key, codec)
        except (av.FFmpegError, ValueError) as error:
            raise StoreError(f"images of '{key}' cannot be encoded: {error}") from error
        files[name] = {"sha256": sha256_file(folder / name), "num_bytes": (folder / name).stat().st_size}
        cameras[key] = {**camera, "rows": checksum([index[:-1]])}
        steps[FRAME + key], last[FRAME + key] = index[:-1], index[-1:]
    data = to_parquet(last)
    files[LAST] = {"sha256": sha256(data), "num_bytes": len(data)}
    write_file(folder / LAST, data)
    note = {**description, "cameras": cameras, "files": files}
    data = to_parquet(steps, note=dump_json(note))
    write_file(folder / STEPS, data)
    write_file(folder / MANIFEST, pack_manifest(with_steps(note, data)))
    fsync_folder(folder)


def _write_camera(path: Path, columns: Columns, key: str, codec: ImageCodec) -> tuple[dict[str, Any], Array]:
    """Encode one camera; returns its manifest entry and the frame index of each row."""
    piece = columns.images[key][-1]
    shape, dtype = piece.shape[1:], piece.dtype.name
    layout = Layout(codec=codec.choose(shape=shape, dtype=dtype), shape=shape, dtype=dtype)
    distinct = DistinctFrames(columns.rows(key))
    with path.open("w+b") as file:
        prints = encode(file, distinct, layout, crf=codec.quality)
        file.flush()
        os.fsync(file.fileno())
    psnr_db = None
    if not layout.lossless:
        psnr_db, prints = _measure_quality(path, columns, key, layout, num_frames=len(prints))
    camera = {
        "file": path.name,
        "codec": layout.codec,
        "num_frames": len(prints),
        "shape": list(shape),
        "dtype": dtype,
        "psnr_db": psnr_db,
        "crc32": "".join(f"{value:08x}" for value in prints),
    }
    return camera, np.array(distinct.index, np.int64)


def _measure_quality(
    path: Path, columns: Columns, key: str, layout: Layout, *, num_frames: int
) -> tuple[float | None, list[int]]:
    """Decode the written file and compare it with the input; returns the PSNR in dB and the frames' checksums."""
    converter = ColorConverter(layout)
    squares, prints = 0.0, []
    with path.open("rb") as file:
        pairs = zip(DistinctFrames(columns.rows(key)), decode(file, num_frames=num_frames), strict=True)
        for seen, picture in pairs:
            difference = np.subtract(seen, converter.pixels(picture), dtype=np.float32).ravel()
            squares += float(np.dot(difference, difference))
            prints.append(converter.fingerprint(picture))
    mean = squares / (num_frames * math.prod(layout.shape))
    return (round(10 * math.log10(255**2 / mean), 2) if mean else None), prints
