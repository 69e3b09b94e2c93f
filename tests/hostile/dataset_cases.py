"""Hostile LeRobot datasets. Most are changes of a dataset that Dovetail exported, with cameras."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dovetail.episodes.lerobot import export
from dovetail.episodes.log import EpisodeLog
from hostile.folders import CODE, Place, add_case, nested, put, replace
from hostile.run_cases import black_video, parquet, playlist, zeros
from support.lerobot_episodes import MemoryLog, make_labels, still_episode
from support.lerobot_v21 import TOP, write_v21

DATA, META, KEPT = (
    f"{name}/chunk-000/file-000.parquet" for name in ("data", "meta/episodes", "dovetail/episodes")
)


@functools.cache
def _honest() -> Path:
    """Exported once per process, then copied."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-dataset-")) / "dataset"
    log = MemoryLog([0, 1])
    labels = {name: make_labels(log.episode(name), success=True) for name in log.ids()}
    export(log, folder, labels=labels.get, codec="h264")
    return folder


@functools.cache
def _still() -> Path:
    """600 images of 640x480, 553 MB in memory, in a video of less than a megabyte."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-still-"))
    log = EpisodeLog(folder / "log")
    log.commit(still_episode(480, 640, 3, num_steps=600))
    export(log, folder / "dataset", codec="h264")
    return folder / "dataset"


def _dataset(change: Callable[[Place], object]) -> Callable[[Place], None]:
    def build(place: Place) -> None:
        shutil.copytree(_honest(), place.run)
        change(place)

    return build


def _info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        path = place.run / "meta" / "info.json"
        info = json.loads(path.read_text())
        change(info)
        path.write_text(json.dumps(info))

    return _dataset(edit)


def _foreign(change: Callable[[Place], object]) -> Callable[[Place], None]:
    """As a dataset that another program made."""

    def edit(place: Place) -> None:
        shutil.rmtree(place.run / "dovetail")
        change(place)

    return _dataset(edit)


def _set(table: pa.Table, name: str, values: Any) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, name, values if isinstance(values, pa.Array) else pa.array(values))


def _table(file: str, change: Callable[[pa.Table], pa.Table], *, foreign: bool = False) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        path = place.run / file
        pq.write_table(change(pq.read_table(path)), path)

    return _foreign(edit) if foreign else _dataset(edit)


def _column(file: str, name: str, values: Callable[[pa.Table], Any], **other: Any) -> Callable[[Place], None]:
    return _table(file, lambda table: _set(table, name, values(table)), **other)


def _kept(name: str, value: Any) -> Callable[[Place], None]:
    return _column(KEPT, name, lambda table: pa.array([value] * len(table), table.schema.field(name).type))


def _kept_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    def values(table: pa.Table) -> list[str]:
        found = [json.loads(text) for text in table[name].to_pylist()]
        for body in found:
            change(body)
        return [json.dumps(body) for body in found]

    return _column(KEPT, name, values)


def _npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def _vector(value: float) -> Callable[[pa.Table], Any]:
    def values(table: pa.Table) -> Any:
        flat = np.asarray(table["action"].combine_chunks().flatten()).copy()
        flat[-1] = value
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), 2)

    return values


def _png_bomb(place: Place) -> None:
    """A foreign dataset with one picture of 20000x20000 pixels in its table."""
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    path, info_path = place.run / DATA, place.run / "meta" / "info.json"
    table, info = pq.read_table(path), json.loads(info_path.read_text())
    name = "observation.images.wrist"
    info["features"][name]["dtype"] = "image"
    pictures = pa.array([{"bytes": file.getvalue(), "path": "x"}] * len(table))
    pq.write_table(table.append_column(name, pictures), path)
    info_path.write_text(json.dumps(info))


def _video(make: Callable[[Place], bytes]) -> Callable[[Place], None]:
    return _dataset(lambda p: put(next((p.run / "videos").rglob("*.mp4")), make(p)))


def _zip_bomb(place: Place) -> None:
    path = place.run / KEPT
    table = pq.read_table(path)
    pq.write_table(_set(table, "arrays", pa.array([_npz(a=bytes(400_000_000))] * len(table), pa.binary())), path)


def _link(name: str, target: Callable[[Place, Path], object]) -> Callable[[Place], None]:
    return _dataset(lambda place: replace(place.run / name, lambda path: target(place, path)))


def _feature(**fields: Any) -> Callable[[Place], None]:
    return _info(lambda info: info["features"]["observation.state"].update(fields))


def _without_rows(place: Place) -> None:
    shutil.rmtree(place.run / "meta" / "episodes")


def _v21(change: Callable[[Place], object]) -> Callable[[Place], None]:
    """A dataset of v2.1, where each episode has its own files."""

    def build(place: Place) -> None:
        write_v21(place.run)
        change(place)

    return build


def _v21_info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        path = place.run / "meta" / "info.json"
        info = json.loads(path.read_text())
        change(info)
        path.write_text(json.dumps(info))

    return _v21(edit)


def _v21_line(**fields: Any) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        path = place.run / OLD_META
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        put(path, "\n".join(json.dumps({**line, **fields}) for line in lines))

    return _v21(edit)


def _v21_nan(place: Place) -> None:
    table = pq.read_table(place.run / OLD_DATA)
    pq.write_table(_set(table, "action", _vector(float("nan"))(table)), place.run / OLD_DATA)


OLD_DATA, OLD_META = "data/chunk-000/episode_000000.parquet", "meta/episodes.jsonl"
OLD_VIDEO = f"videos/chunk-000/{TOP}/episode_000000.mp4"
OLD_CASES: dict[str, Callable[[Place], None]] = {
    "pattern-width": _v21_info(lambda i: i.update(data_path="data/{episode_index:0999999999d}")),
    "pattern-attribute": _v21_info(lambda i: i.update(data_path="data/{episode_chunk.__class__}/x.parquet")),
    "pattern-parent": _v21_info(lambda i: i.update(data_path="../outside/secret.json")),
    "pattern-absolute": _v21_info(lambda i: i.update(video_path="/etc/passwd")),
    "pattern-of-v30": _v21_info(lambda i: i.update(data_path="data/{chunk_index:03d}.parquet")),
    "chunks-size-zero": _v21_info(lambda i: i.update(chunks_size=0)),
    "chunks-size-text": _v21_info(lambda i: i.update(chunks_size="1000")),
    "chunks-size-huge": _v21_info(lambda i: i.update(chunks_size=10**30)),
    "episodes-huge": _v21_info(lambda i: i.update(total_episodes=10**12)),
    "feature-name-path": _v21_info(
        lambda i: i["features"].update({"../../x": {"dtype": "video", "shape": [9, 9, 3]}})
    ),
    "lines-many": _v21(lambda p: put(p.run / OLD_META, "{}\n" * 5_000_000)),
    "lines-deep": _v21(lambda p: put(p.run / OLD_META, nested())),
    "lines-binary": _v21(lambda p: put(p.run / OLD_META, bytes(range(256)) * 100)),
    "lines-large": _v21(lambda p: put(p.run / OLD_META, '{"x": [' + "[]," * 4_000_000 + "0]}")),
    "lines-missing": _v21(lambda p: (p.run / OLD_META).unlink()),
    "line-length-huge": _v21_line(length=2**62),
    "line-length-zero": _v21_line(length=0),
    "line-index-huge": _v21_line(episode_index=10**30),
    "line-task-number": _v21_line(tasks=[7]),
    "line-task-escape": _v21_line(tasks=["\x1b[31m\n"]),
    "tasks-deep": _v21(lambda p: put(p.run / "meta" / "tasks.jsonl", nested())),
    "data-bomb": _v21(lambda p: put(p.run / OLD_DATA, zeros(compression="zstd", use_dictionary=False))),
    "data-text": _v21(lambda p: put(p.run / OLD_DATA, "not a table")),
    "action-nan": _v21(_v21_nan),
    "video-huge": _v21(lambda p: put(p.run / OLD_VIDEO, black_video(8_000, 8_000, 1, codec="mpeg4", form="mp4"))),
    "video-playlist": _v21(lambda p: put(p.run / OLD_VIDEO, playlist.format(p.secret).encode())),
    "video-outside": _v21(lambda p: replace(p.run / OLD_VIDEO, lambda path: path.symlink_to(p.secret))),
    "data-outside": _v21(lambda p: replace(p.run / "data", lambda path: path.symlink_to(p.secret_folder))),
    "lines-pipe": _v21(lambda p: replace(p.run / OLD_META, lambda path: os.mkfifo(path))),
}

CASES: dict[str, Callable[[Place], None]] = {
    # path patterns
    "pattern-width": _info(lambda i: i.update(data_path="data/{chunk_index:0999999999d}/{file_index:03d}")),
    "pattern-attribute": _info(lambda i: i.update(data_path="data/{chunk_index.__class__}/x.parquet")),
    "pattern-index": _info(lambda i: i.update(data_path="data/{chunk_index[0]}/x.parquet")),
    "pattern-position": _info(lambda i: i.update(data_path="data/{0}/{}/x.parquet")),
    "pattern-conversion": _info(lambda i: i.update(data_path="data/{chunk_index!r}.parquet")),
    "pattern-nested": _info(lambda i: i.update(data_path="data/{chunk_index:{file_index}}.parquet")),
    "pattern-open": _info(lambda i: i.update(data_path="data/{chunk_index")),
    "pattern-parent": _info(lambda i: i.update(data_path="../outside/secret.json")),
    "pattern-absolute": _info(lambda i: i.update(data_path="/etc/passwd")),
    "pattern-zero-byte": _info(lambda i: i.update(data_path="data/\0.parquet")),
    "pattern-long": _info(lambda i: i.update(data_path="x" * 100_000)),
    "pattern-number": _info(lambda i: i.update(data_path=7)),
    "video-pattern-parent": _info(lambda i: i.update(video_path="../{video_key}/secret.json")),
    "video-pattern-width": _info(lambda i: i.update(video_path="{video_key:>999999999}")),
    # info.json
    "episodes-huge": _info(lambda i: i.update(total_episodes=10**12)),
    "episodes-negative": _info(lambda i: i.update(total_episodes=-1)),
    "episodes-text": _info(lambda i: i.update(total_episodes="2")),
    "fps-zero": _info(lambda i: i.update(fps=0)),
    "fps-nan": _info(lambda i: i.update(fps=float("nan"))),
    "fps-text": _info(lambda i: i.update(fps="10")),
    "features-list": _info(lambda i: i.update(features=[])),
    "feature-name-path": _info(
        lambda i: i["features"].update({"../../x": {"dtype": "video", "shape": [9, 9, 3]}})
    ),
    "feature-name-escape": _info(lambda i: i["features"].update({"\x1b[31m\n": {"dtype": "int64", "shape": [1]}})),
    "feature-huge-shape": _feature(shape=[10**12]),
    "feature-negative-shape": _feature(shape=[-4]),
    "feature-object": _feature(dtype="O"),
    "feature-wide-type": _feature(dtype="V1000000000"),
    "feature-names-mapping": _feature(names={"a": {"b": []}}),
    "info-deep": _dataset(lambda p: put(p.run / "meta" / "info.json", '{"x": ' + nested() + "}")),
    "info-large": _dataset(lambda p: put(p.run / "meta" / "info.json", '{"x": [' + "[]," * 4_000_000 + "0]}")),
    "info-list": _dataset(lambda p: put(p.run / "meta" / "info.json", "[1]")),
    "layout-deep": _dataset(lambda p: put(p.run / "dovetail" / "dataset.json", '{"schema": ' + nested() + "}")),
    "layout-list": _dataset(lambda p: put(p.run / "dovetail" / "dataset.json", "[]")),
    # tables
    "data-bomb": _dataset(lambda p: put(p.run / DATA, zeros(compression="zstd", use_dictionary=False))),
    "data-repetition-bomb": _dataset(lambda p: put(p.run / DATA, zeros())),
    "data-text": _dataset(lambda p: put(p.run / DATA, "not a table")),
    "data-other-columns": _dataset(lambda p: put(p.run / DATA, parquet(pa.table({"a": [1]})))),
    "data-nulls": _column(DATA, "frame_index", lambda t: pa.array([None] * len(t), pa.int64())),
    "data-strings": _column(DATA, "frame_index", lambda t: ["x"] * len(t)),
    "action-nan": _column(DATA, "action", _vector(float("nan"))),
    "action-infinity": _column(DATA, "action", _vector(float("inf"))),
    "action-nan-foreign": _column(DATA, "action", _vector(float("nan")), foreign=True),
    "action-ragged": _column(DATA, "action", lambda t: [[1.0] * (1 + n % 3) for n in range(len(t))]),
    "action-deep": _column(DATA, "action", lambda t: [[[[1.0]]]] * len(t), foreign=True),
    "reward-nan": _column(DATA, "next.reward", lambda t: pa.array(np.full(len(t), np.nan, np.float32))),
    "task-index-unknown": _table(DATA, lambda t: _set(t, "task_index", [99] * len(t)), foreign=True),
    "rows-missing": _dataset(_without_rows),
    "rows-twice": _table(META, lambda t: pa.concat_tables([t, t])),
    "rows-index-huge": _column(META, "dataset_from_index", lambda t: [2**62] * len(t)),
    "rows-index-negative": _column(META, "data/chunk_index", lambda t: [-1] * len(t)),
    "rows-length-huge": _column(META, "length", lambda t: [2**50] * len(t)),
    "rows-length-zero": _column(META, "length", lambda t: [0] * len(t)),
    "rows-length-text": _column(META, "length", lambda t: ["x"] * len(t)),
    "rows-bomb": _dataset(lambda p: put(p.run / META, zeros())),
    "tasks-text": _dataset(lambda p: put(p.run / "meta" / "tasks.parquet", b"x")),
    # what Dovetail stores besides
    "kept-zip-bomb": _dataset(_zip_bomb),
    "kept-arrays-noise": _kept("arrays", b"PK\3\4 noise"),
    "kept-huge-header": _kept(
        "arrays", _npz(a=_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,)}"))
    ),
    "kept-pickle": _kept(
        "arrays", _npz(a=_npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\n"))
    ),
    "kept-wide-type": _kept(
        "arrays", _npz(a=_npy("{'descr': '|V999999999', 'fortran_order': False, 'shape': (9,)}"))
    ),
    "kept-id-path": _kept("id", "../../outside"),
    "kept-id-other": _kept("id", "another-id"),
    "kept-robot-deep": _kept("robot", nested()),
    "kept-robot-list": _kept("robot", "[]"),
    "kept-episode-deep": _kept("episode", nested()),
    "kept-outcome": _kept_json("episode", lambda e: e.update(outcome="won")),
    "kept-prompt-escape": _kept_json("episode", lambda e: e.update(prompt="\x1b[31m")),
    "kept-seed": _kept_json("episode", lambda e: e.update(seed="x")),
    "kept-label-deep": _kept("labels", nested()),
    "kept-label-confidence": _kept_json("labels", lambda m: m.update(confidence=float("nan"))),
    "kept-label-success": _kept_json("labels", lambda m: m.update(success="yes")),
    "kept-label-priority": _kept_json("labels", lambda m: m.update(labeler="human", priority=10**9)),
    # pictures
    "png-bomb": _foreign(_png_bomb),
    "video-huge": _video(lambda p: black_video(8_000, 8_000, 1, codec="mpeg4", form="mp4")),
    "video-playlist": _video(lambda p: playlist.format(p.secret).encode()),
    "video-empty": _video(lambda p: b""),
    "video-other-size": _video(lambda p: black_video(640, 480, 20, codec="mpeg4", form="mp4")),
    # links and pipes
    "info-outside": _link("meta/info.json", lambda p, path: path.symlink_to(p.secret)),
    "info-pipe": _link("meta/info.json", lambda p, path: os.mkfifo(path)),
    "data-outside": _link("data", lambda p, path: path.symlink_to(p.secret_folder)),
    "data-zero": _link(DATA, lambda p, path: path.symlink_to("/dev/zero")),
    "videos-root": _link("videos", lambda p, path: path.symlink_to("/")),
    "meta-loop": _link("meta", lambda p, path: path.symlink_to("meta")),
    "layout-pipe": _link("dovetail/dataset.json", lambda p, path: os.mkfifo(path)),
    "code": _dataset(lambda p: put(p.run / "conversion.py", CODE)),
    "still-scene": lambda p: shutil.copytree(_still(), p.run),
}
CASES |= {f"v21-{name}": build for name, build in OLD_CASES.items()}
DEFAULT = ("pattern-width", "data-bomb", "action-nan", "video-playlist", "v21-lines-many", "v21-action-nan")
for what, build in CASES.items():
    level = "default" if what in DEFAULT else "extended"
    add_case(f"dataset-{what}", build, "dataset", "import", is_dataset=True, level=level)


def _export_into(place: Place) -> None:
    """The dataset that an export adds to has a link in the place of its scratch folder."""
    place.secret_folder.joinpath("ready").mkdir(exist_ok=True)
    (place.run / "lerobot").mkdir()
    (place.run / "lerobot" / ".export").symlink_to(place.secret_folder)


add_case("export-scratch-outside", _export_into, "export-inside", "ls")
