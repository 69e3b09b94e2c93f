"""From rows to a batch: what is before and after each, looked up by index in mapped files."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.core.disk import load_json, read_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Window
from dovetail.replay._files import Counters, Ring, fence, ring_paths
from dovetail.replay._layout import SCHEMA, Layout

__all__ = ["Copiers", "Files"]

_MEMORY = 10**9  # bytes a second: what is slower is no memory
_LARGE = 1 << 20  # bytes: below that, handing work to another thread takes longer than doing it
_ROWS = ""  # no camera is called that
_NEVER = 2**62


class Copiers:
    """Threads for large copies, started when there is one: one core alone does not fill the memory's bus."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._is_slow = True  # until shown otherwise: then the next ones are asked for before they are copied

    def run(self, rings: Mapping[str, Ring], jobs: Sequence[tuple[str, Array, Array]]) -> None:
        """Copy (ring, numbers, out) for each job. What comes slower than memory does comes from a disk."""
        if not jobs:
            return
        if self._is_slow:
            for name in dict.fromkeys(name for name, _, _ in jobs):
                rings[name].will_need(np.concatenate([n.reshape(-1) for other, n, _ in jobs if other == name]))
        start_s = time.perf_counter()
        self._copy(lambda name, numbers, out: rings[name].take(numbers, out), jobs)
        num_bytes = sum(out.nbytes for _, _, out in jobs)
        self._is_slow = num_bytes < _MEMORY * (time.perf_counter() - start_s)

    def _copy(self, take: Callable[[str, Array, Array], None], jobs: Sequence[tuple[str, Array, Array]]) -> None:
        """Each job cut in as many parts as there are threads."""
        if self._num_threads == 1:
            for job in jobs:
                take(*job)
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._num_threads, thread_name_prefix="replay")
            cuts = []
            for name, numbers, out in jobs:
                edges = np.linspace(0, len(numbers), self._num_threads + 1).astype(int)
                cuts += [(name, numbers[a:b], out[a:b]) for a, b in itertools.pairwise(edges)]
            for done in [self._pool.submit(take, *cut) for cut in cuts]:
                done.result()


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a replay as a reader has them."""

    layout: Layout
    rings: Mapping[str, Ring]
    counters: Counters
    path: Path  # of the counters
    inode: int

    @staticmethod
    def open(folder: Path, *, deadline_s: float) -> Files | None:
        """None while there are none. Counters come first: a writer that starts anew marks them as retired before it takes
        anything away, so whatever was opened before that mark belongs together."""
        while (folder / "layout.json").exists():
            try:
                path = folder / "counters"
                inode = path.stat().st_ino
                counters = Counters(path)
                data = load_json(read_file(folder / "layout.json"), name=str(folder / "layout.json"), indent=1)
                if data["schema"] != SCHEMA:
                    raise StoreError(f"it has schema {data['schema']}, this version reads {SCHEMA}")
                layout = Layout.from_json(data)
                rings = {
                    name: Ring(file, num_items=num_items, shape=shape, dtype=dtype)
                    for name, (file, num_items, shape, dtype) in ring_paths(folder, layout).items()
                }
                fence()
                files = Files(layout, rings, counters, path, inode)
                if counters["magic"] == Counters.MAGIC and files.are_current():
                    return files
                error: Exception = StoreError(f"the replay in {folder} is damaged: start its writer")
            except (StoreError, OSError, KeyError, TypeError, ValueError) as failure:
                error = failure  # thrown away at this moment, perhaps
            if time.monotonic() > deadline_s:
                raise StoreError(f"cannot open the replay in {folder}: {error}") from error
            time.sleep(0.001)
        return None

    def are_current(self) -> bool:
        """Whether they are still those that are written: a writer that starts anew makes others."""
        if self.counters["retired"]:
            return False
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def are_intact(self, oldest: Mapping[str, int]) -> bool:
        """Whether nothing that was gathered has been given back for overwriting meanwhile."""
        tails = dict(zip(self.layout.cameras, self.counters.tail_frame, strict=False))
        tails[_ROWS] = self.counters["tail_row"]
        return all(number >= tails[name] for name, number in oldest.items())

    def gather(
        self,
        into: Mapping[str, Array],
        rows: Array,
        window: Window,
        *,
        head_row: int,
        copiers: Copiers,
    ) -> dict[str, int]:
        """Fill the batch; returns the oldest row, and the oldest frame of each camera, that were looked at."""
        steps, alive, after = self._ahead(rows, max(window.horizon, window.num_steps), head_row)
        earned, ends = alive[:, : window.num_steps], after[min(window.num_steps, len(after)) - 1]
        if window.until_taken_over and window.num_steps > 1:
            earned = earned & self._before_a_person(steps[:, : window.num_steps])
            ends = np.stack(after, axis=1)[np.arange(len(rows)), earned.sum(axis=1) - 1]
        depth = max(window.history.values(), default=1)
        past = {"observation": self._behind(rows, depth), "next": self._behind(ends, depth)}
        jobs: list[tuple[str, Array, Array]] = []
        for name, out in into.items():
            side, _, key = name.partition("/")
            if side in past:
                key, mask = (
                    (key[:-5], True) if key.endswith("/mask") and key[:-5] in window.history else (key, False)
                )
                seen, known = past[side]
                num_ticks = window.history.get(key)
                if mask:
                    assert num_ticks is not None
                    out[:] = known[:, -num_ticks:]
                else:
                    jobs.append((key, seen[:, -1] if num_ticks is None else seen[:, -num_ticks:], out))
            elif name == "action/mask":
                out[:] = alive[:, : window.horizon]
            elif name in ("action", "achieved", "human", "policy_version"):
                chosen = steps[:, : window.horizon] if window.horizon > 1 else rows
                self._take(name, chosen, out)
        if "reward" in into or "discount" in into:
            self._returns(into, steps[:, : window.num_steps], earned, window.gamma)
        oldest = {_ROWS: int(min(past["observation"][0].min(), past["next"][0].min()))}
        return self._observations(jobs, oldest, copiers)

    def _ahead(self, rows: Array, num_steps: int, head_row: int) -> tuple[Array, Array, list[Array]]:
        """Rows of the steps from each on [B, K], which of them exist, and after each the row that follows.

        Past the end the last step is repeated. A row without a follower is no step: it is the last observation, or
        the newest of an episode that is still running.
        """
        following = self.rings["following"]
        current, after = rows, following.get(rows)
        exists = np.ones(len(rows), bool)
        steps, alive, ends = [current], [exists], [after]
        for _ in range(num_steps - 1):
            then = following.get(after)
            exists = exists & (then >= 0) & (then < head_row)
            current, after = np.where(exists, after, current), np.where(exists, then, after)
            steps.append(current)
            alive.append(exists)
            ends.append(after)
        return np.stack(steps, axis=1), np.stack(alive, axis=1), ends

    def _before_a_person(self, steps: Array) -> Array:
        """Which of the steps [B, K] come before somebody takes over from the policy; the first always does."""
        human = self._column("human", steps).astype(bool)
        taken_over = human[:, 1:] & ~human[:, :-1]
        before: Array = np.ones(steps.shape, bool)
        before[:, 1:] = np.logical_and.accumulate(~taken_over, axis=1)
        return before

    def _behind(self, rows: Array, num_ticks: int) -> tuple[Array, Array]:
        """Rows of the ticks up to each [B, h], oldest first, and which of them exist; the first is repeated."""
        previous = self.rings["previous"]
        exists = np.ones(len(rows), bool)
        ticks, known = [rows], [exists]
        for _ in range(num_ticks - 1):
            before = previous.get(rows)
            exists = exists & (before >= 0)
            rows = np.where(exists, before, rows)
            ticks.append(rows)
            known.append(exists)
        return np.stack(ticks[::-1], axis=1), np.stack(known[::-1], axis=1)

    def _returns(self, into: Mapping[str, Array], steps: Array, alive: Array, gamma: float) -> None:
        """What is earned over each span, and what the value of what follows counts for."""
        rewards = np.where(alive, self._column("reward", steps), np.float32(0.0))
        factors = np.where(alive, np.float32(gamma) * self._column("discount", steps), np.float32(1.0))
        weights = np.cumprod(factors, axis=1, dtype=np.float32)  # after each step
        if "reward" in into:
            before = np.concatenate((np.ones_like(weights[:, :1]), weights[:, :-1]), axis=1)
            into["reward"][:] = (before * rewards).sum(axis=1, dtype=np.float32)
        if "discount" in into:
            into["discount"][:] = weights[:, -1]

    def _observations(
        self, jobs: list[tuple[str, Array, Array]], oldest: dict[str, int], copiers: Copiers
    ) -> dict[str, int]:
        large: list[tuple[str, Array, Array]] = []
        for key, rows, out in jobs:
            if key not in self.layout.cameras:
                self._take(f"observation/{key}", rows, out)
                continue
            numbers = self._column(f"frame/{key}", rows)
            oldest[key] = min(int(numbers.min()), oldest.get(key, _NEVER))
            job = (f"frames/{key}", numbers, out)
            if out.nbytes < _LARGE:
                self._take(*job)
            else:
                large.append(job)
        copiers.run(self.rings, large)
        return oldest

    def _column(self, name: str, rows: Array) -> Array:
        return self.rings[name].get(rows)

    def _take(self, name: str, numbers: Array, out: Array) -> None:
        self.rings[name].take(numbers, out)
