"""No command follows, runs, deletes or swallows what a hostile folder contains (docs/security.md)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import hostile.dataset_cases
import hostile.device_cases
import hostile.published_cases
import hostile.run_cases  # noqa: F401  they add their cases
from hostile.conftest import Worker, arguments_of
from hostile.folders import CASES, Case, Place, folder_bytes, honest_run, level_of, snapshot
from hostile.watch import Watch, forbidden

EXTRA_BYTES = 256 << 20
_MARKS = {"default": (), "extended": (pytest.mark.extended,), "slow": (pytest.mark.slow,)}


@pytest.fixture
def place(worker: Worker, tmp_path: Path) -> Iterator[Place]:
    outside = worker.outside
    (outside / "folder").mkdir(exist_ok=True)
    (outside / "secret.json").write_text('{"secret": 1}')
    (outside / "folder" / "manifest.json").write_text("{}")
    yield Place(run=honest_run(tmp_path), outside=outside)
    shutil.rmtree(outside)
    outside.mkdir()


READS_CONFIG = ("eval", "serve", "receive", "deployed", "watch", "distill", "report", "resume", "video", "relabel")


def check(commands: Sequence[str], honest: Worker, place: Place, scratch: Path, case: Case) -> None:
    before, size = snapshot(place.outside), folder_bytes(place.run)
    cwd = place.run if case.in_run else scratch
    ran = place.run.parent / "code-ran"  # `../code-ran` of commands in a config
    for command in commands:
        watch = Watch(place.outside, place.outside / "folder")
        answer = honest.run(arguments_of(command, place, scratch), folder=place.run, cwd=cwd)
        touched = [event for event in watch.events() if "linked-" not in event]  # both names of a hard link
        watch.close()
        what = f"{command}: {answer}"
        assert not answer["timed_out"], what
        assert not touched, what
        assert not ran.exists(), what
        assert not forbidden().connected(), what
        assert snapshot(place.outside) == before, what
        assert "Traceback" not in answer["output"] + answer["errors"], what
        lines = answer["errors"].splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if answer["code"] == 1 and command in ("verify", "repair") and not errors:
            pass  # the findings are in the output
        elif answer["code"]:
            assert answer["code"] in (1, 2), what
            assert len(errors) == 1, what
            assert lines[-1] == errors[0], what
            assert "--debug" not in errors[0], what
            if case.refusal and command in READS_CONFIG:
                assert case.refusal in errors[0], what
        else:
            assert not errors, what
            assert not (case.refusal and command in READS_CONFIG), what
        shown = answer["output"] + answer["errors"]
        assert not [letter for letter in shown if letter < " " and letter not in "\n\t"], what
        allowed = honest.baselines.get(command, min(honest.baselines.values())) * 1024 + size + EXTRA_BYTES
        assert answer["added_kb"] * 1024 <= allowed, what


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_MARKS[level_of(case)]) for name, case in CASES.items()]
)
def test_hostile_folder_ends_in_one_clear_line(name: str, honest: Worker, place: Place, tmp_path: Path) -> None:
    build_and_check(CASES[name], honest, place, tmp_path, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_hostile_folder_with_all_commands(name: str, honest: Worker, place: Place, tmp_path: Path) -> None:
    build_and_check(CASES[name], honest, place, tmp_path, quick=False)


def build_and_check(case: Case, honest: Worker, place: Place, tmp_path: Path, *, quick: bool) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if case.is_dataset:
        shutil.rmtree(place.run)
    case.build(place)
    num_quick = 1 if case.is_dataset else 2  # an import also builds a robot, which takes a second
    check(case.commands[:num_quick] if quick else case.commands, honest, place, scratch, case)


def test_there_are_at_least_100_hostile_folders_in_make_test_all() -> None:
    assert len([case for case in CASES.values() if level_of(case) != "slow"]) >= 100


def test_listener_notices_a_connection() -> None:
    host, _, port = forbidden().address.rpartition(":")
    assert not forbidden().connected()
    socket.create_connection((host, int(port))).close()
    assert forbidden().connected()
    assert not forbidden().connected()


def test_watch_notices_an_access(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    watch = Watch(tmp_path)
    assert not watch.events()
    (tmp_path / "file").read_text()
    assert watch.events()
    os.listdir(tmp_path)
    assert watch.events()
    watch.close()
