"""Writing an episode's folder: frames, numbers, and last the manifest with everybody's checksum."""

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
from dovetail.episodes._frames import Colours, Distinct, Layout, decode, encode
from dovetail.episodes._manifest import LAST, MANIFEST, STEPS, pack_manifest, with_steps
from dovetail.episodes._tables import to_parquet
from dovetail.episodes.images import ImageCodec

__all__ = ["write_episode"]


def write_episode(folder: Path, told: Mapping[str, Any], columns: Columns, *, codec: ImageCodec) -> None:
    """Fill a folder that nobody reads yet, durably. `told` is all that the manifest says but how it is stored."""
    files: dict[str, dict[str, Any]] = {}
    cameras: dict[str, dict[str, Any]] = {}
    steps, last = dict(columns.steps), {"time_ns": np.array([columns.last_time_ns], np.int64)}
    last |= {OBSERVATION + key: value[None] for key, value in columns.last.items()}
    for key in columns.images:
        name = f"frames-{quote(key, safe='')}.mkv"  # keys may hold slashes
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
    note = {**told, "cameras": cameras, "files": files}
    data = to_parquet(steps, note=dump_json(note))
    write_file(folder / STEPS, data)
    write_file(folder / MANIFEST, pack_manifest(with_steps(note, data)))
    fsync_folder(folder)


def _write_camera(path: Path, columns: Columns, key: str, codec: ImageCodec) -> tuple[dict[str, Any], Array]:
    """Encode one camera; returns what the manifest says of it, and for each row the index of its frame."""
    piece = columns.images[key][-1]
    shape, dtype = piece.shape[1:], piece.dtype.name
    layout = Layout(codec=codec.choose(shape=shape, dtype=dtype), shape=shape, dtype=dtype)
    distinct = Distinct(columns.rows(key))
    with path.open("w+b") as file:
        prints = encode(file, distinct, layout, crf=codec.quality)
        file.flush()
        os.fsync(file.fileno())
    psnr_db = None
    if not layout.lossless:
        psnr_db, prints = _look_back(path, columns, key, layout, num_frames=len(prints))
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


def _look_back(
    path: Path, columns: Columns, key: str, layout: Layout, *, num_frames: int
) -> tuple[float | None, list[int]]:
    """Decode what was just written: it can be read, it is all there, and this is how far it is from what was seen."""
    colours = Colours(layout)
    squares, prints = 0.0, []
    with path.open("rb") as file:
        pairs = zip(Distinct(columns.rows(key)), decode(file, num_frames=num_frames), strict=True)
        for seen, picture in pairs:
            difference = np.subtract(seen, colours.pixels(picture), dtype=np.float32).ravel()
            squares += float(np.dot(difference, difference))
            prints.append(colours.fingerprint(picture))
    mean = squares / (num_frames * math.prod(layout.shape))
    return (round(10 * math.log10(255**2 / mean), 2) if mean else None), prints
