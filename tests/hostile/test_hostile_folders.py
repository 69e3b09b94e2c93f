"""No command follows, runs, deletes or swallows what a hostile folder contains (docs/security.md)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hostile.dataset_cases
import hostile.device_cases
import hostile.playing_cases
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
    _fill(outside)
    yield Place(run=honest_run(tmp_path), outside=outside)
    shutil.rmtree(outside)
    outside.mkdir()


READS_CONFIG = (
    *("eval", "serve", "receive", "deployed", "watch", "distill", "report", "resume", "video", "relabel"),
    *("compare", "open-loop"),
)


class Disturbed(Exception):
    """Another program of the machine, such as `find /tmp`, has listed all folders here."""


def check(
    commands: Sequence[str], honest: Worker, place: Place, scratch: Path, case: Case, *, beside: Path | None = None
) -> None:
    """`beside` is a folder that no hostile folder names, so an access to it is of another program."""
    before, size = snapshot(place.outside), folder_bytes(place.run)
    cwd = place.run if case.in_run else scratch
    ran = place.run.parent / "code-ran"  # `../code-ran` of commands in a config
    for command in commands:
        watch = Watch(place.outside, place.outside / "folder")
        decoy = Watch(beside) if beside is not None else None
        answer = honest.run(arguments_of(command, place, scratch), folder=place.run, cwd=cwd)
        touched = [event for event in watch.events() if "linked-" not in event]  # both names of a hard link
        watch.close()
        is_disturbed = decoy is not None and bool(decoy.events())
        if decoy is not None:
            decoy.close()
        if touched and is_disturbed:
            raise Disturbed
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
    """A case is repeated from the start while another program disturbs it: an access of ours happens every time."""
    num_quick = 1 if case.is_dataset else 2  # an import also builds a robot, which takes a second
    commands = case.commands[:num_quick] if quick else case.commands
    beside = tmp_path / "beside"
    beside.mkdir()
    for attempt in range(3):
        scratch = tmp_path / f"scratch{attempt}"
        scratch.mkdir()
        if attempt:
            _start_again(place)
        if case.is_dataset:
            shutil.rmtree(place.run)
        case.build(place)
        try:
            check(commands, honest, place, scratch, case, beside=None if attempt == 2 else beside)
            return
        except Disturbed:
            continue


def _start_again(place: Place) -> None:
    shutil.rmtree(place.run)
    for path in place.outside.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _fill(place.outside)
    honest_run(place.run.parent)


def _fill(outside: Path) -> None:
    (outside / "folder").mkdir(exist_ok=True)
    (outside / "secret.json").write_text('{"secret": 1}')
    (outside / "folder" / "manifest.json").write_text("{}")


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


def test_case_is_repeated_if_another_program_lists_the_folders(place: Place, tmp_path: Path) -> None:
    """And only then: an access that `beside` does not share is ours."""

    class Listing:
        baselines: ClassVar[dict[str, int]] = {"ls": 0}
        num_runs = 0

        def run(self, arguments: list[str], *, folder: Path, cwd: Path) -> dict[str, Any]:
            self.num_runs += 1
            os.listdir(place.outside)
            if self.is_disturbed:
                os.listdir(tmp_path / "beside")
            return {}

        def __init__(self, *, is_disturbed: bool) -> None:
            self.is_disturbed = is_disturbed

    case = Case(name="x", build=lambda place: None, commands=("ls",))
    for is_disturbed, num_runs in ((True, 3), (False, 1)):
        worker = Listing(is_disturbed=is_disturbed)
        scratch = tmp_path / "beside"
        with pytest.raises(KeyError, match="timed_out"):
            build_and_check(case, worker, place, tmp_path, quick=True)  # type: ignore[arg-type]
        assert worker.num_runs == num_runs
        for path in (scratch, *tmp_path.glob("scratch*")):
            shutil.rmtree(path)
