"""Links of Hugging Face's cache are followed, others lead nowhere; large and nested files end in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.checkpoints.folder_files import check_size, clear_errors, find_file, read_json


def cached(root: Path) -> Path:
    """A folder of Hugging Face's cache, as huggingface_hub makes it."""
    model = root / "models--lerobot--pi0"
    (model / "blobs").mkdir(parents=True)
    (model / "blobs" / "abc").write_text('{"type": "pi0"}')
    (model / "snapshots" / "main" / "pretrained_model").mkdir(parents=True)
    (model / "snapshots" / "main" / "config.json").symlink_to("../../blobs/abc")
    (model / "snapshots" / "main" / "pretrained_model" / "config.json").symlink_to("../../../blobs/abc")
    return model / "snapshots" / "main"


def test_folder_of_the_cache_is_read_also_through_a_link_to_it(tmp_path: Path) -> None:
    folder = cached(tmp_path / "hub")
    (tmp_path / "link").symlink_to(folder)
    for one in (folder, folder / "pretrained_model", tmp_path / "link", tmp_path / "link" / "pretrained_model"):
        assert read_json(one / "config.json") == {"type": "pi0"}
        assert find_file(one / "config.json").name == "abc"


def test_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "assets" / "config.json").symlink_to("../real.json")
    assert read_json(tmp_path / "assets" / "config.json", root=tmp_path) == {}
    with pytest.raises(CheckpointError, match="symbolic link out of the folder"):
        read_json(tmp_path / "assets" / "config.json")


@pytest.mark.parametrize("target", ["../outside.json", "/etc/passwd", "models--a/../../outside.json"])
def test_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside.json").write_text("{}")
    (tmp_path / "folder" / "models--a").mkdir(parents=True)
    (tmp_path / "folder" / "config.json").symlink_to(target)
    with pytest.raises(CheckpointError, match="symbolic link out of the folder"):
        read_json(tmp_path / "folder" / "config.json")


def test_blobs_that_are_a_link_or_of_no_model_are_refused(tmp_path: Path) -> None:
    folder = cached(tmp_path / "hub")
    blobs = folder.parents[1] / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link out of the folder"):
        read_json(folder / "config.json")
    other = cached(tmp_path / "other")
    renamed = other.parents[1].rename(tmp_path / "other" / "anything")
    with pytest.raises(CheckpointError, match="symbolic link out of the folder"):
        read_json(renamed / "snapshots" / "main" / "config.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "' + "x" * (5 << 20) + '"}', "more than the 4194304 that are allowed"),
        ("[]", "no JSON object"),
        ("\xff{", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_text_that_is_no_small_object_is_refused_in_one_short_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_json(tmp_path / "config.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_pipe_loop_and_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "missing"):
        with pytest.raises(CheckpointError):
            read_json(tmp_path / name)


def test_large_file_and_holes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1" * 2000)
    check_size(tmp_path / "small", max_bytes=2000)
    with pytest.raises(CheckpointError, match="are allowed"):
        check_size(tmp_path / "small", max_bytes=1999)
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="holes"):
        check_size(tmp_path / "holes", max_bytes=1 << 40)


@pytest.mark.parametrize(
    "error", [KeyError("a\nb"), ZeroDivisionError(), OverflowError("x" * 9999), OSError(36, "x")]
)
def test_error_of_a_folder_is_one_short_line(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(CheckpointError, match="contradicts itself") as caught, clear_errors(tmp_path):
        raise error
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_long_message_is_cut_and_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught, clear_errors(tmp_path):
        raise UsageError("\x1b" + "x" * 9999)
    assert len(str(caught.value)) == 1000 and str(caught.value).isprintable()
