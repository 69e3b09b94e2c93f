"""Find out which columns and frames of a damaged file are still good, by the checksum of each."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av

from dovetail.core.disk import dump_json, read_file, sha256, sha256_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes._columns import checksum
from dovetail.episodes._frames import ColorConverter, Layout, encode, frame_index, open_video
from dovetail.episodes._manifest import LAST, STEPS, expected_columns, layout_of, read_manifest_copy, with_steps
from dovetail.episodes._tables import from_parquet, to_parquet

__all__ = ["describe_remains", "find_problem", "manifest_from_steps", "rebuild_file"]


def manifest_from_steps(folder: Path) -> dict[str, Any]:
    """Rebuild the manifest from its copy in the steps file, after verifying every column of that file."""
    path = folder / STEPS
    data = read_file(path)
    note = read_manifest_copy(data, name=str(path))
    if note["id"] != folder.name:
        raise StoreError(f"{path} belongs to episode {note['id']}")
    _, lost = _good_columns(data, STEPS, note)
    if lost:
        raise StoreError(f"{path} is damaged: {', '.join(lost)}")
    return with_steps(note, data)


def _good_columns(data: bytes, name: str, manifest: Mapping[str, Any]) -> tuple[dict[str, Array], list[str]]:
    """Return the undamaged columns of a Parquet file in their order, and the names of the others."""
    good: dict[str, Array] = {}
    lost: list[str] = []
    for column, expected in expected_columns(name, manifest).items():
        try:
            values = from_parquet(data, only=[column])[column]
        except (ValueError, KeyError, MemoryError):
            lost.append(column)
            continue
        num_rows = manifest["num_steps"] if name == STEPS else 1
        if len(values) == num_rows and expected in (None, checksum([values if name == STEPS else values[0]])):
            good[column] = values
        else:
            lost.append(column)
    return good, lost


def _good_frames(data: bytes, camera: Mapping[str, Any]) -> set[int]:
    """Decode a video past every error; returns the indices of the frames that match their checksum."""
    converter = ColorConverter(layout_of(camera))
    text = camera["crc32"]
    prints = [int(text[place : place + 8], 16) for place in range(0, len(text), 8)]
    good: set[int] = set()
    for picture in _pictures(data):
        index = frame_index(picture)
        try:
            if 0 <= index < len(prints) and converter.fingerprint(picture) == prints[index]:
                good.add(index)
        except (av.FFmpegError, ValueError):
            continue
    return good


def _pictures(data: bytes) -> Iterator[av.VideoFrame]:
    try:
        with open_video(io.BytesIO(data), "matroska") as container:
            for packet in container.demux(container.streams.video[0]):
                try:
                    yield from packet.decode()
                except (av.FFmpegError, ValueError):
                    continue  # the next packet may be good
    except (av.FFmpegError, ValueError, IndexError):
        return


def rebuild_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes | None:
    """Rebuild the original bytes of a damaged file from its values; None if that is impossible.

    A flipped byte may hit padding, an index or a name and leave all values intact. Writing the same values again gives the
    same bytes, unless a library has changed; the checksum in the manifest proves it.
    """
    try:
        data = read_file(folder / name)
    except StoreError:
        return None
    if name in (STEPS, LAST):
        columns, lost = _good_columns(data, name, manifest)
        others = {key: file for key, file in manifest["files"].items() if key != STEPS}
        note = dump_json({**manifest, "files": others}) if name == STEPS else b""
        fresh = b"" if lost else to_parquet(columns, note=note)
    else:
        camera = next(camera for camera in manifest["cameras"].values() if camera["file"] == name)
        fresh = _encode_again(data, layout_of(camera), camera)
    return fresh if sha256(fresh) == manifest["files"][name]["sha256"] else None


def _encode_again(data: bytes, layout: Layout, camera: Mapping[str, Any]) -> bytes:
    if not layout.lossless or len(_good_frames(data, camera)) != camera["num_frames"]:
        return b""
    ordered = sorted(_pictures(data), key=frame_index)
    converter, file = ColorConverter(layout), io.BytesIO()
    encode(file, (converter.pixels(picture) for picture in ordered), layout)
    return file.getvalue()


def _describe_lost_frames(lost: Sequence[int], num_frames: int) -> str:
    """Describe lost frames, such as `is lost from frame 12 of 60 on`, counted from 0."""
    if len(lost) == num_frames:
        return "is lost"
    if lost == list(range(lost[0], num_frames)):
        return f"is lost from frame {lost[0]} of {num_frames} on"
    spans: list[list[int]] = []
    for frame in lost:
        if spans and frame == spans[-1][-1] + 1:
            spans[-1].append(frame)
        else:
            spans.append([frame])
    places = [str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
    more = f" and {len(places) - 5} more places" if len(places) > 5 else ""
    return f"has lost frames {', '.join(places[:5])}{more} of {num_frames}"


def find_problem(path: Path, file: Mapping[str, Any]) -> str:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != file["num_bytes"]:
        return f"has {size} bytes, expected {file['num_bytes']}"
    try:
        return "" if sha256_file(path) == file["sha256"] else "does not match its checksum"
    except StoreError as error:
        return f"cannot be read: {error}"


def describe_remains(folder: Path, name: str, manifest: Mapping[str, Any], bad: list[str]) -> str:
    """Describe what can still be read from a damaged file and from the other files of the episode."""
    try:
        data = read_file(folder / name)
    except StoreError:
        data = b""
    images = [camera["file"] for camera in manifest["cameras"].values()]
    if name not in (STEPS, LAST):
        key, camera = next(pair for pair in manifest["cameras"].items() if pair[1]["file"] == name)
        good = _good_frames(data, camera)
        lost = [frame for frame in range(camera["num_frames"]) if frame not in good]
        description = _describe_lost_frames(lost, camera["num_frames"]) if lost else "has all its frames"
        tables = {"steps": STEPS, "last observation": LAST}
        intact = [what for what, file in tables.items() if file not in bad]
        numbers = "the numbers are intact"
        if len(intact) < len(tables):
            numbers = f"of the numbers, intact: {' and '.join(intact) or '-'}"
        return f"camera '{key}' {description}; {numbers}"
    what = "steps" if name == STEPS else "last observation"
    columns, lost_columns = _good_columns(data, name, manifest)
    if not lost_columns:
        description = f"all values of the {what} can still be read"
    elif not columns:
        description = f"the {what} {'are' if name == STEPS else 'is'} lost"
    else:
        description = f"of the {what}, lost: {', '.join(lost_columns)}; intact: {', '.join(columns)}"
    if not images:
        return description
    return f"{description}; the images are {'damaged too' if {*images} & {*bad} else 'intact'}"
