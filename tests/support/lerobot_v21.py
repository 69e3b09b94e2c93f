"""A dataset as LeRobot 0.3 writes it (v2.1): a table and a video per camera for each episode, and JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.types import Array
from support.lerobot_episodes import picture

__all__ = ["LENGTHS", "SIZE", "TASKS", "TOP", "write_v21"]

LENGTHS, TASKS = (4, 3, 5), ("stack", "sort")
SIZE = (32, 48, 3)
TOP = "observation.images.top"


def write_v21(
    root: Path, *, fps: int = 10, chunks_size: int = 2, lengths: Sequence[int] = LENGTHS
) -> dict[str, Array]:
    """Write it and return its content. `chunks_size` 2 instead of 1000 gives two folders of episodes."""
    rng = np.random.default_rng(0)
    total = sum(lengths)
    state = rng.normal(size=(total, 4)).astype(np.float32)
    action = rng.normal(size=(total, 2)).astype(np.float32)
    tops = np.stack([picture(SIZE, tick) for tick in range(total)])
    episodes, statistics, first = [], [], 0
    for index, length in enumerate(lengths):
        rows = slice(first, first + length)
        place = f"chunk-{index // chunks_size:03d}"
        frame = np.arange(length)
        _write_table(
            root / "data" / place / f"episode_{index:06d}.parquet",
            {
                "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state[rows].ravel()), 4),
                "action": pa.FixedSizeListArray.from_arrays(pa.array(action[rows].ravel()), 2),
                "timestamp": (frame / fps).astype(np.float32),
                "frame_index": frame,
                "episode_index": np.full(length, index),
                "index": first + frame,
                "task_index": np.full(length, index % 2),
            },
        )
        _write_video(root / "videos" / place / TOP / f"episode_{index:06d}.mp4", tops[rows], fps)
        episodes.append({"episode_index": index, "tasks": [TASKS[index % 2]], "length": length})
        moments = {"min": state[rows].min(0).tolist(), "max": state[rows].max(0).tolist(), "count": [length]}
        statistics.append({"episode_index": index, "stats": {"observation.state": moments}})
        first += length
    _write_lines(root / "meta/episodes.jsonl", episodes)
    _write_lines(root / "meta/episodes_stats.jsonl", statistics)
    _write_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": task} for n, task in enumerate(TASKS)])
    info = _info(fps=fps, lengths=lengths, chunks_size=chunks_size)
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    return {"state": state, "action": action, "top": tops}


def _info(*, fps: int, lengths: Sequence[int], chunks_size: int) -> dict[str, Any]:
    one = {"shape": [1], "names": None}
    video = {"video.fps": float(fps), "video.codec": "h264", "video.is_depth_map": False, "has_audio": False}
    return {
        "codebase_version": "v2.1",
        "robot_type": "so101",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(TASKS),
        "total_videos": len(lengths),
        "total_chunks": -(-len(lengths) // chunks_size),
        "chunks_size": chunks_size,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
            "observation.state": {"dtype": "float32", "shape": [4], "names": ["a", "b", "c", "grip"]},
            TOP: {"dtype": "video", "shape": list(SIZE), "names": ["height", "width", "channels"], "info": video},
            "timestamp": {"dtype": "float32", **one},
            **{
                name: {"dtype": "int64", **one} for name in ("frame_index", "episode_index", "index", "task_index")
            },
        },
    }


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def _write_video(path: Path, frames: Array, fps: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"g": "2", "crf": "18", "bf": "0"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
