"""Writers and readers of a replay in forked processes, which start in milliseconds."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.types import Episode, Purpose, View
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from dovetail.replay.reader import MappedReplayReader
from support.replay_model import KEYS, Model, Refused, Stopped
from support.traceable_episodes import CHECKABLE_WINDOW, checkable_batch, checkable_episode, inconsistent, verdict

CAPACITY_ROWS = 32
_PR_SET_PDEATHSIG = 1


def open_mapped(folder: Path, **config: Any) -> MappedReplay:
    config = {"capacity_rows": CAPACITY_ROWS, **config}
    return MappedReplay(MappedReplayConfig(**config), folder=folder, keys=KEYS)


class Child:
    """A forked process that runs `body(write)`, and what it has written so far."""

    def __init__(self, body: Callable[[Callable[[bytes], None]], None], *, seconds: int = 120) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._from, to = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                signal.alarm(seconds)
                if sys.platform == "linux":  # in case the parent is killed
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                os.close(self._from)
                body(lambda data: _write_all(to, data))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(to)
        self._output = b""
        self._over = False

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over:
            self.kill()

    def wait_for(self, num_bytes: int) -> None:
        while len(self._output) < num_bytes:
            more = os.read(self._from, 65536)
            assert more, "the child ended before it wrote enough"
            self._output += more

    def kill(self) -> bytes:
        """Kill it with SIGKILL; returns its output."""
        os.kill(self.pid, signal.SIGKILL)
        return self.join()[0]

    def join(self) -> tuple[bytes, int]:
        """Return its output and its exit code, or minus the signal."""
        while more := os.read(self._from, 65536):
            self._output += more
        os.close(self._from)
        self._over = True
        _, status = os.waitpid(self.pid, 0)
        return self._output, os.waitstatus_to_exitcode(status)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


# ---- writer


@dataclass(frozen=True)
class Operation:
    """An operation on a replay; the model also needs the whole `episode`."""

    name: str
    arguments: tuple[Any, ...]
    episode: Episode | None = None

    def do(self, replay: MappedReplay) -> None:
        with contextlib.suppress(UsageError):  # an evicted episode cannot be continued
            getattr(replay, self.name)(*self.arguments)

    def apply_to_model(self, model: Model, *, only_evict: bool = False) -> None:
        extra = (self.episode,) if self.name == "extend" else ()
        model.only_evict = only_evict
        with contextlib.suppress(Refused, Stopped):
            getattr(model, self.name)(*self.arguments, *extra)
        model.only_evict = False


def operations(seed: int) -> Iterator[Operation]:
    """Yield random operations of two robots and a labeler without end."""
    dice = random.Random(seed)
    running: list[tuple[Episode, int]] = []
    ended: list[Episode] = []
    for number in itertools.count(1):
        what = dice.choices(("add", "extend", "finish", "relabel", "drop"), (4, 6, 2, 4, 0.5))[0]
        if what == "add" or not ended:
            purpose = Purpose.DEMO if number in (1, 3) else Purpose.ONLINE
            ended.append(checkable_episode(number, dice.randint(1, 6), cuts=(), purpose=purpose))
            yield Operation("add", (ended[-1], verdict(ended[-1], good=dice.random() < 0.5)))
        elif what == "relabel":
            episode = dice.choice(ended[-6:])
            yield Operation("relabel", (verdict(episode, good=dice.random() < 0.5),))
        elif what == "drop":
            yield Operation("drop", (dice.choice(ended[-6:]).id,))
        elif what == "finish" and running:
            episode, _ = running.pop(0)
            ended.append(episode)
            yield Operation("add", (episode, verdict(episode, good=dice.random() < 0.5)))
        else:
            if len(running) < 2:
                running.append((checkable_episode(number, dice.randint(2, 7), cuts=()), 0))
            index = dice.randrange(len(running))
            episode, sent = running[index]
            first, last = max(0, sent - dice.randint(0, 1)), min(sent + dice.randint(1, 3), len(episode) - 1)
            running[index] = (episode, max(last, sent))
            whole = episode.segments[0]
            columns = {name: column[first:last] for name, column in whole.columns.items()}
            segment = type(whole)(episode_id=episode.id, first=first, final=False, columns=columns)
            yield Operation("extend", (episode.start, segment), episode)


# ---- reader


class SamplingProcess:
    """A process that samples continuously and counts inconsistent rows until it is stopped."""

    def __init__(self, folder: Path, *, view: View | None = None, batch: int = 32) -> None:
        self._shared = np.frombuffer(mmap.mmap(-1, 16), np.int64)  # stop, batches

        def watch(write: Callable[[bytes], None]) -> None:
            reader, into, rng = (
                MappedReplayReader(folder),
                checkable_batch(batch),
                np.random.default_rng(os.getpid()),
            )
            found = {"batches": 0, "empty": 0, "bad": 0, "numbers": 0}
            newest = 0
            write(b"!")
            while not self._shared[0]:
                try:
                    reader.sample(into, view=view or View(), rng=rng, window=CHECKABLE_WINDOW)
                except UsageError:  # empty at the moment
                    found["empty"] += 1
                    time.sleep(0.001)
                    continue
                bad = inconsistent(into)
                found["batches"] += 1
                self._shared[1] += 1
                found["bad"] += int(bad.sum())
                highest = int(into["observation/state"][..., 0].max())
                found["numbers"] += highest > newest
                newest = max(newest, highest)
            write(json.dumps(found).encode())

        self._child = Child(watch, seconds=900)
        self._child.wait_for(1)

    def __enter__(self) -> SamplingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shared[0]:  # the test has failed
            self._child.kill()

    @property
    def num_batches(self) -> int:
        return int(self._shared[1])

    def wait_for(self, num_batches: int) -> None:
        deadline_s = time.monotonic() + 60.0
        while self.num_batches < num_batches:
            assert time.monotonic() < deadline_s, f"the reader has drawn {self.num_batches} batches only"
            time.sleep(0.002)

    def stop(self) -> dict[str, int]:
        """Stop it. Return its counts: batches, draws from an empty replay, bad rows, and how often it drew an episode
        newer than all before."""
        self._shared[0] = 1
        output, code = self._child.join()
        assert code == 0, f"the reader ended with {code}"
        found: dict[str, int] = json.loads(output[1:])
        return found
