"""Runs commands on hostile folders, each in a forked child of a warm process: a cold start takes seconds.

Reads requests from stdin, one JSON object per line, and answers each with one line: exit code, output, seconds, and the
child's peak of resident memory above that of this process. Resident memory is what counts on a machine; RLIMIT_AS would
count torch's address space of several gigabytes instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import dovetail.api.datasets
import dovetail.api.evaluation
import dovetail.api.policy
import dovetail.episodes.lerobot
import dovetail.learn.checkpoint
import dovetail.reports.report
import dovetail.serve.server
from dovetail.api.names import find_run
from dovetail.cli.main import main
from dovetail.console.episode_list import EpisodeList, EpisodeQuery
from dovetail.console.run_files import OpenRun
from dovetail.core.errors import DovetailError
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.folder import RunFolder


def read_dataset(folder: Path) -> None:
    """What an import does, for a dataset of any robot."""
    dataset = dovetail.episodes.lerobot.open_dataset(folder)
    with tempfile.TemporaryDirectory() as log:
        for index in range(len(dataset)):
            streams, episode = dataset.image_streams(index), dataset.episode(index, images=False)
            check_values(episode, dataset.labels(index), name=f"episode {index}", streams=streams)
            EpisodeLog(Path(log)).commit(episode, streams=streams)


def load_episodes(folder: Path) -> None:
    log = EpisodeLog(folder / "episodes")
    for episode_id in log.ids():
        log.load(episode_id)


def open_console(folder: Path) -> None:
    """What the pages of the console read."""
    opened = OpenRun(find_run(str(folder)))
    opened.history.read()
    opened.history.summary()
    opened.weights.versions()
    opened.weights.pinned()
    EpisodeList(opened.episodes, opened.labels).page(EpisodeQuery())


def write_report(folder: Path) -> None:
    """What the end of a run does, and `Run.report` of the API."""
    dovetail.reports.report.write_report(RunFolder.open(find_run(str(folder))))


CALLS = {
    "read-dataset": read_dataset,
    "load-episodes": load_episodes,
    "open-console": open_console,
    "write-report": write_report,
}


class _NoServer:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def listen(self, *_: Any) -> str:
        return "nowhere"

    def run(self, *_: Any) -> None: ...


def run(arguments: list[str], folder: str) -> int:
    dovetail.serve.server.PolicyServer = _NoServer  # loading is of interest here, not sockets
    if arguments[0] not in CALLS:
        return main(arguments)
    try:
        CALLS[arguments[0]](Path(folder))
    except DovetailError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    return 0


def fork(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        before_kb, started_s = _resident_kb(), time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.chdir(request["cwd"])
            os.setpgid(0, 0)
            with contextlib.suppress(ValueError):
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = 99
            try:
                code = run(request["arguments"], request["folder"])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        timed_out, status, usage = False, 0, None
        while True:
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                break
            if not timed_out and time.monotonic() - started_s > request["limit_s"]:
                timed_out = True
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
        return {
            "code": os.waitstatus_to_exitcode(status),
            "timed_out": timed_out,
            "output": texts[0],
            "errors": texts[1],
            "seconds": time.monotonic() - started_s,
            "added_kb": usage.ru_maxrss - before_kb,
        }


def _resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads of a pool do not survive a fork
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(fork(json.loads(line))) + "\n")
        answers.flush()
