"""Check that a manifest has the expected fields and types. Its checksum proves only that it was not damaged by accident.

A manifest may come from an untrusted source: a file name must not lead out of the episode's folder, and a number must
not make a reader allocate memory that the episode does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.core.errors import DovetailError, StoreError
from dovetail.core.types import EpisodeStart, Outcome
from dovetail.episodes._frames import MAX_PIXELS, Layout

__all__ = ["check_manifest", "optional_facts"]

_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9_%~][A-Za-z0-9._%~-]{0,199}")  # as `quote` makes them: no slash, no leading dot
_MAX_STEPS = 10**8
_MAX_SPEC_VALUES = 1 << 26  # of one observation
_MAX_VECTOR_VALUES = 100_000  # of one observation that is not an image: datasets name each value
_MAX_UNIX_NS = 9 * 10**18  # year 2255
_MAX_RESET_S = 1e8  # a reset may wait for a person
_TEXTS = ("id", "task", "prompt", "operator", "config_hash", "boot_id", "content")
_COLUMNS = ("time_ns", "proposed", "executed", "source", "policy_version", "chunk_id", "chunk_index")
_COUNTS = ("num_steps", "num_human_steps", "num_interventions", "number")


def check_manifest(manifest: Mapping[str, Any], *, name: str, files: Iterable[str]) -> None:
    """Raise StoreError unless the manifest is valid and lists at least these files."""
    try:
        _check_facts(manifest)
        _check_files(manifest["files"], {*files})
        for key, camera in manifest["cameras"].items():
            _check_camera(key, camera, manifest["files"])
    except (AttributeError, DovetailError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(f"{error}".split())[:200]
        what = f"lacks {reason}" if isinstance(error, KeyError) else f"is not valid: {reason}"
        raise StoreError(f"{name} {what}") from error


def optional_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an episode that 0.6 and older did not store. Raises ValueError."""
    reset_s, has_success = facts.get("reset_s"), facts.get("has_success", True)
    is_number = isinstance(reset_s, int | float) and not isinstance(reset_s, bool)
    _require(
        reset_s is None or (is_number and 0.0 <= reset_s <= _MAX_RESET_S), "reset_s should be a number of seconds"
    )
    _require(isinstance(has_success, bool), "has_success should be true or false")
    return {"reset_s": None if reset_s is None else float(reset_s), "has_success": has_success}


def _check_facts(manifest: Mapping[str, Any]) -> None:
    for field in _TEXTS:
        _require(isinstance(manifest[field], str) and len(manifest[field]) <= 10_000, f"{field} should be a text")
    for field in _COUNTS:
        _check_count(manifest[field], field, _MAX_STEPS)
    _check_count(manifest["started_unix_ns"], "started_unix_ns", _MAX_UNIX_NS)
    for field in ("seed", "last_time_ns"):
        _require(type(manifest[field]) is int and abs(manifest[field]) < 2**63, f"{field} should be an integer")
    versions = manifest["policy_versions"]
    _require(isinstance(versions, list), "policy_versions should be a list")
    for version in versions:
        _require(type(version) is int and abs(version) < 2**63, "policy_versions should be integers")
    _require(_are_texts(manifest["columns"]), "columns should be texts")
    missing = [name for name in _COLUMNS if f"steps/{name}" not in manifest["columns"]]
    _require(not missing, f"there is no column {', '.join(missing)}")
    optional_facts(manifest)
    _require(manifest.get("deterministic") in (None, True, False), "deterministic should be true or false")
    Outcome(manifest["outcome"])
    _require(manifest["judgement"] is None or Outcome(manifest["judgement"]) in Outcome, "judgement")
    robot = EpisodeStart.from_json(manifest).robot
    _require(
        isinstance(robot.name, str) and isinstance(robot.embodiment, str), "the robot's name should be a text"
    )
    hz = robot.control_hz
    _require(isinstance(hz, int | float) and math.isfinite(hz) and 0 < hz < 1e6, "control_hz is out of range")
    for key, spec in (*robot.observation.items(), ("action", robot.action)):
        limit = _MAX_SPEC_VALUES if len(spec.shape) > 2 else _MAX_VECTOR_VALUES
        _require(math.prod(spec.shape) <= limit, f"'{key[:80]}' has shape {list(spec.shape)}, which is too large")


def _check_files(files: Mapping[str, Any], required: set[str]) -> None:
    _require(required <= set(files), f"files lack {', '.join(sorted(required - set(files)))}")
    for name, file in files.items():
        _require(_FILE.fullmatch(name) is not None, f"{name[:80]!r} is not the name of a file of an episode")
        _require(_HASH.fullmatch(file["sha256"]) is not None, f"the checksum of {name} is not one")
        _check_count(file["num_bytes"], f"the size of {name}", 2**62)


def _check_camera(key: str, camera: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    what = f"camera '{key[:80]}'"
    _require(camera["file"] in files, f"{what} has no file")
    _require(len(camera["shape"]) == 3, f"{what} should have images of shape [height, width, channels]")
    for side in camera["shape"]:
        _check_count(side, f"a side of {what}", 1 << 16)
    layout = Layout(codec=camera["codec"], shape=tuple(camera["shape"]), dtype=camera["dtype"])
    _require(layout.is_known, f"{what} has an unknown format")
    height, width = layout.shape[:2]
    _require(0 < height * width <= MAX_PIXELS, f"{what} has images of {width}x{height} pixels")
    _check_count(camera["num_frames"], f"the frames of {what}", _MAX_STEPS)
    _require(
        isinstance(camera["crc32"], str) and len(camera["crc32"]) == 8 * camera["num_frames"],
        f"{what} should have a checksum for each frame",
    )
    psnr_db = camera["psnr_db"]
    _require(psnr_db is None or isinstance(psnr_db, int | float), f"the quality of {what} should be a number")
    _require(isinstance(camera["rows"], str), f"{what} has no checksum of its rows")


def _check_count(value: Any, what: str, limit: int) -> None:
    _require(type(value) is int and 0 <= value <= limit, f"{what} should be 0 to {limit}")


def _are_texts(values: Any) -> bool:
    return all(isinstance(text, str) for pair in values.items() for text in pair)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
