"""kill -9 a process that spools, commits and acknowledges, at random times; a script, so that it can fork.

    python -m support.kill_writers FOLDER NUM_KILLS SEED

One parent imports everything once and then only forks: writers, which say what is durable through a pipe until they
are killed, and checkers, which recover and compare with what was said. Prints what happened as JSON.
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


def hand_over(spool: Spool, log: EpisodeLog, say: Callable[[str], None]) -> None:
    for name in spool.pending():
        episode = spool.load(name)
        if episode is not None:
            log.commit(episode)
            say(f"committed {name}")
        spool.acknowledge(name)
        say(f"{'acknowledged' if episode is not None else 'empty'} {name}")


def write(folder: Path, pipe: int, number: int) -> None:
    """A robot process: transfer what the last one left, then record and transfer until killed."""

    def say(text: str) -> None:
        os.write(pipe, f"{text}\n".encode())

    spool, log = Spool(folder / "spool"), EpisodeLog(folder / "episodes")
    hand_over(spool, log, say)
    for count in itertools.count():
        episode = original(f"{number:04d}-{count}")
        spool.begin(episode.start)
        for index, segment in enumerate(episode.segments):
            spool.append(segment, after=after(episode, index))
            say(f"flushed {episode.id} {index + 1}")
        spool.end(outcome=episode.outcome, judgement=episode.judgement)
        say(f"ended {episode.id}")
        hand_over(spool, log, say)


class Said:
    """Everything that was reported as durable."""

    def __init__(self) -> None:
        self.flushed: collections.Counter[str] = collections.Counter()
        self.ended: set[str] = set()
        self.committed: set[str] = set()
        self.acknowledged: set[str] = set()
        self.empty: set[str] = set()  # killed between its start and its first segment

    def hear(self, data: bytes) -> None:
        for line in data.decode().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it reported
            what, name, *count = line.split()
            if what == "flushed":
                self.flushed[name] = int(count[0])
            else:
                getattr(self, what).add(name)


def check(folder: Path, said: Said, *, known: set[str]) -> None:
    """Recover, as the next process would; then everything that was said is true, and nothing is half.

    Episodes that are `known` from the last time are verified, but not loaded and compared again.
    """
    spool, log = Spool(folder / "spool"), EpisodeLog(folder / "episodes")
    assert said.committed <= set(log.ids()), "committed, but not in the log"
    for finding in verify_spool(folder / "spool"):
        assert "damaged" not in finding.problem, finding
    hand_over(spool, log, lambda text: None)
    assert spool.pending() == []
    damaged = [finding for finding in verify_log(folder / "episodes") if not finding.is_intact]
    for finding in damaged:
        assert finding.path == folder / "episodes" / ".order", finding  # killed before its line was written
        repair(folder / "episodes", finding)
    assert not damaged or all(finding.is_intact for finding in verify_log(folder / "episodes"))
    there = set(log.ids())
    assert not said.empty & {*said.flushed, *there}
    assert {*said.flushed, *said.committed, *said.acknowledged} <= there, "durable, and lost"
    aborted = sum(log.manifest(name).outcome is Outcome.ABORTED for name in there)
    for name in there - known:
        found, whole = log.load(name), original(name)
        if found.outcome is Outcome.ABORTED:
            num_segments = [2 * (count + 1) for count in range(NUM_SEGMENTS)].index(len(found)) + 1
            assert_same_episode(found, cut_short(whole, num_segments))  # a whole number of records
            assert num_segments >= said.flushed[name], "less than was flushed"
            assert name not in said.ended
        else:
            assert_same_episode(found, whole)
    counts = {"episodes": len(there), "aborted": aborted, "acknowledged": len(said.acknowledged)}
    sys.stdout.write(json.dumps(counts) + "\n")


def forked(work: Callable[[], None]) -> int:
    """The pid of a child that does this, and then exits: 0, or 1 if it failed."""
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
    dice, said = random.Random(seed), Said()
    known: set[str] = set()
    for number in range(num_kills):
        receive, send = os.pipe()
        os.set_blocking(send, False)  # a full pipe must not be what stops it
        writer = forked(lambda pipe=send, number=number: write(folder, pipe, number))  # type: ignore[misc]
        os.close(send)
        if number % 2 == 0:  # on a slow machine too, some get as far as this
            select.select([receive], [], [], 30.0)
        time.sleep(dice.uniform(0.0, 0.2))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WIFSIGNALED(status), "the writer died by itself"
        with os.fdopen(receive, "rb") as pipe:
            said.hear(pipe.read())
        last = number + 1 == num_kills
        if last or dice.random() < 0.3:  # otherwise the next writer recovers
            skipped = set() if last else known
            _, status = os.waitpid(forked(lambda known=skipped: check(folder, said, known=known)), 0)  # type: ignore[misc]
            assert status == 0, f"after kill {number + 1}, seed {seed}"
            known = set(EpisodeLog(folder / "episodes").ids())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
