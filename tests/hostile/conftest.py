"""The warm worker that runs commands on hostile folders, and what each command needs on an honest one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostile.folders import Place, add_camera_episode, honest_run
from hostile.published_cases import write_pi0

LIMIT_S = 40.0


@dataclass(slots=True)
class Worker:
    process: subprocess.Popen[str]
    outside: Path
    baselines: dict[str, int]  # kilobytes that each command adds on an honest folder

    def run(self, arguments: list[str], *, folder: Path, cwd: Path) -> dict[str, Any]:
        request = {"arguments": arguments, "folder": str(folder), "cwd": str(cwd), "limit_s": LIMIT_S}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def arguments_of(command: str, place: Place, scratch: Path) -> list[str]:
    run = str(place.run)
    return {
        "ls": ["episodes", "ls", run],
        "show": ["episodes", "show", run, "first"],
        "verify": ["episodes", "verify", run],
        "repair": ["episodes", "verify", run, "--repair"],
        "export": ["episodes", "export", run, "--out", str(scratch / "dataset")],
        "export-inside": ["episodes", "export", run],
        "rm": ["episodes", "rm", run, "first", "--yes"],
        "video": ["episodes", "video", run, "first", "--size", "64"],
        "eval": ["eval", run, "--episodes", "1"],
        "eval-checkpoint": ["eval", str(place.run / "checkpoints" / "last"), "--episodes", "1"],
        "serve": ["serve", run, "--quiet"],
        "receive": ["serve", run, "--quiet", "--receive"],
        "deployed": ["deploy", run],
        "watch": ["deploy", run, "--watch", "1"],
        "distill": [
            *("distill", run, "--into", run, "--name", "new", "--updates", "1", "--no-eval"),
            *("--runs-dir", str(scratch)),
        ],
        "report": ["write-report"],
        "relabel": ["label", run, "--labeler", "outcome"],
        "resume": ["run", "--resume", run],
        "console": ["open-console"],
        "load": ["load-episodes"],
        "import": ["episodes", "import", "imported", run, "--recipe", "peg-insertion", "--runs-dir", str(scratch)],
        "dataset": ["read-dataset"],
        "serve-folder": ["serve", run, "--quiet", "--runs-dir", str(scratch)],
        "policy-export": ["policy", "export", run, str(scratch / "exported")],
        "compare": ["compare", run, f"{run}/checkpoints/last", "--episodes", "2", "--quiet"],
        "open-loop": ["eval", run, "--open-loop", run, "--episodes", "1", "--out", str(scratch / "open-loop")],
    }[command]


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    outside = tmp_path_factory.mktemp("outside")
    environment = {**os.environ, "HOSTILE_OUTSIDE": str(outside), "COLUMNS": "200", "MUJOCO_GL": "egl"}
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    found = Worker(process, outside, {})
    yield found
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@pytest.fixture(scope="session")
def honest(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """The worker, after each command ran on an honest folder: none may fail there."""
    parent = tmp_path_factory.mktemp("honest")
    place = Place(run=honest_run(parent), outside=worker.outside)
    for command in (
        "ls",
        "show",
        "verify",
        "repair",
        "export",
        "eval",
        "eval-checkpoint",
        "serve",
        "deployed",
        "watch",
        "report",
        "console",
        "relabel",
        "load",
    ):
        answer = worker.run(arguments_of(command, place, parent), folder=place.run, cwd=parent)
        assert answer["code"] == 0 or (command == "verify" and answer["code"] == 1), (command, answer)
        worker.baselines[command] = answer["added_kb"]
    for command in ("compare", "open-loop"):
        answer = worker.run(arguments_of(command, place, parent), folder=place.run, cwd=parent)
        if answer["code"] == 0:  # otherwise the smallest of the others counts
            worker.baselines[command] = answer["added_kb"]
    folder = Place(run=write_pi0(parent / "published"), outside=worker.outside)
    for command in ("serve-folder", "policy-export"):
        answer = worker.run(arguments_of(command, folder, parent), folder=folder.run, cwd=parent)
        assert answer["code"] == 0, (command, answer)
        worker.baselines[command] = answer["added_kb"]
    add_camera_episode(place.run)
    worker.baselines["load"] = worker.run(["load-episodes"], folder=place.run, cwd=parent)["added_kb"]
    return worker
