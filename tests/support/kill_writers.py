"""kill -9 a process that spools, commits and acknowledges, at random times; a script, so that it can fork.

    python -m support.kill_writers FOLDER NUM_KILLS SEED

One parent imports everything once and then only forks. Writers report through a pipe what is durable until they
are killed. Checkers recover and compare with the reports. Prints the counts as JSON.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from dovetail.core.types import Episode, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import repair, verify_log, verify_spool
from support.small_episodes import after, assert_same_episode, cut_short, make_episode

CUTS = (2, 4, 6)
NUM_SEGMENTS = len(CUTS) + 1


def original(name: str) -> Episode:
    return make_episode(id=name, num_steps=8, seed=int(name.rpartition("-")[2]), cuts=CUTS)


def transfer_pending(spool: Spool, log: EpisodeLog, report: Callable[[str], None]) -> None:
    for name in spool.pending():
        episode = spool.load(name)
        if episode is not None:
            log.commit(episode)
            report(f"committed {name}")
        spool.acknowledge(name)
        report(f"{'acknowledged' if episode is not None else 'empty'} {name}")


def write(folder: Path, pipe: int, number: int) -> None:
    """A robot process: transfer what the last one left, then record and transfer until killed."""

    def report(text: str) -> None:
        os.write(pipe, f"{text}\n".encode())

    spool, log = Spool(folder / "spool"), EpisodeLog(folder / "episodes")
    transfer_pending(spool, log, report)
    for count in itertools.count():
        episode = original(f"{number:04d}-{count}")
        spool.begin(episode.start)
        for index, segment in enumerate(episode.segments):
            spool.append(segment, after=after(episode, index))
            report(f"flushed {episode.id} {index + 1}")
        spool.end(outcome=episode.outcome, judgement=episode.judgement)
        report(f"ended {episode.id}")
        transfer_pending(spool, log, report)


class Reports:
    """Everything that was reported as durable."""

    def __init__(self) -> None:
        self.flushed: collections.Counter[str] = collections.Counter()
        self.ended: set[str] = set()
        self.committed: set[str] = set()
        self.acknowledged: set[str] = set()
        self.empty: set[str] = set()  # killed between its start and its first segment

    def add(self, data: bytes) -> None:
        for line in data.decode().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it reported
            what, name, *count = line.split()
            if what == "flushed":
                self.flushed[name] = int(count[0])
            else:
                getattr(self, what).add(name)


def check(folder: Path, reports: Reports, *, known: set[str]) -> None:
    """Recover as the next process would. Then every report is true and no episode is incomplete.

    Episodes that are `known` from the last check are verified, but not loaded and compared again.
    """
    spool, log = Spool(folder / "spool"), EpisodeLog(folder / "episodes")
    assert reports.committed <= set(log.ids()), "committed, but not in the log"
    for finding in verify_spool(folder / "spool"):
        assert "damaged" not in finding.problem, finding
    transfer_pending(spool, log, lambda text: None)
    assert spool.pending() == []
    damaged = [finding for finding in verify_log(folder / "episodes") if not finding.is_intact]
    for finding in damaged:
        assert finding.path == folder / "episodes" / ".order", finding  # killed before its line was written
        repair(folder / "episodes", finding)
    assert not damaged or all(finding.is_intact for finding in verify_log(folder / "episodes"))
    there = set(log.ids())
    assert not reports.empty & {*reports.flushed, *there}
    assert {*reports.flushed, *reports.committed, *reports.acknowledged} <= there, "durable, but lost"
    aborted = sum(log.manifest(name).outcome is Outcome.ABORTED for name in there)
    for name in there - known:
        found, whole = log.load(name), original(name)
        if found.outcome is Outcome.ABORTED:
            num_segments = [2 * (count + 1) for count in range(NUM_SEGMENTS)].index(len(found)) + 1
            assert_same_episode(found, cut_short(whole, num_segments))  # a whole number of records
            assert num_segments >= reports.flushed[name], "less than was flushed"
            assert name not in reports.ended
        else:
            assert_same_episode(found, whole)
    counts = {"episodes": len(there), "aborted": aborted, "acknowledged": len(reports.acknowledged)}
    sys.stdout.write(json.dumps(counts) + "\n")


def forked(work: Callable[[], None]) -> int:
    """Fork a child that calls `work` and exits with 0, or with 1 after an error; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main(folder: Path, num_kills: int, seed: int) -> None:
    rng, reports = random.Random(seed), Reports()
    known: set[str] = set()
    for number in range(num_kills):
        receive, send = os.pipe()
        os.set_blocking(send, False)  # a full pipe must not block the writer
        writer = forked(lambda pipe=send, number=number: write(folder, pipe, number))  # type: ignore[misc]
        os.close(send)
        if number % 2 == 0:  # also on a slow machine, wait for the first report
            select.select([receive], [], [], 30.0)
        time.sleep(rng.uniform(0.0, 0.2))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WIFSIGNALED(status), "the writer died by itself"
        with os.fdopen(receive, "rb") as pipe:
            reports.add(pipe.read())
        last = number + 1 == num_kills
        if last or rng.random() < 0.3:  # otherwise the next writer recovers
            skipped = set() if last else known
            _, status = os.waitpid(forked(lambda known=skipped: check(folder, reports, known=known)), 0)  # type: ignore[misc]
            assert status == 0, f"after kill {number + 1}, seed {seed}"
            known = set(EpisodeLog(folder / "episodes").ids())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
